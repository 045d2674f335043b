"""RunHealth: the memory of a run, its stalls, other programs on its processors, and what its data has to say."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import torch

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.job.job import Batch
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.health import MemoryView, Stall, StallWatch
from gpuwise.runtime.run.memory import PeakMemory
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.neighbours import Neighbours
from gpuwise.runtime.run.reporter import Reporter


class RunHealth:
    """Looks at how a run is doing, a few times a second; while entered, a thread watches that it does not stand still.

    Arguments:
        memory: counting since before the model was built.
        forecast: of the memory, for when it runs out.

    Attributes:
        memory_bytes: at the last look; None before, and where the system does not say.
        stall: the loop calls its `beat` whenever it turns to something else.
    """

    def __init__(
        self,
        program: Program,
        loader: MicroBatchLoader,
        memory: PeakMemory,
        *,
        forecast: MemoryForecast | None,
        reporter: Reporter,
        meter: Meter,
    ):
        self.memory_bytes: int | None = None
        folder = None if reporter.folder is None else reporter.folder.path
        self.stall = StallWatch(folder, tell=self._on_stall, waits_for=loader.waits_for)
        self._program, self._loader, self._memory, self._forecast = program, loader, memory, forecast
        self._reporter, self._meter = reporter, meter
        self._neighbours = Neighbours(torch.get_num_threads()) if program.device.type == "cpu" else None
        self._stalls: deque[Stall] = deque()
        self._noted = len(loader.notes)  # more come while an iterable is read

    def __enter__(self) -> RunHealth:
        self.stall.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.stall.__exit__(*error)

    def look(self) -> None:
        """Tells what has come up since the last look."""
        self.memory_bytes = self._memory.now_bytes()
        self.stall.step_s = self._meter.recent_step_time_s
        if self._neighbours is not None and (note := self._neighbours.look(time.monotonic())):
            self._reporter.note(note)
        for note in self._loader.notes[self._noted :]:
            self._noted += 1
            self._reporter.note(note)
        while self._stalls:
            stall = self._stalls.popleft()
            record = {"kind": "stall", "text": stall.text, "step": self._meter.step, "phase": stall.phase}
            self._reporter.log.write("event", record)

    def peak_memory_bytes(self) -> int | None:
        """The most that was held since before the model was built; None where the system does not say."""
        return self._memory.bytes()

    def free_share(self) -> float:
        """The share of the processor time that the run wants which other programs have left it."""
        return 1.0 if self._neighbours is None else self._neighbours.available()

    def memory_view(self, micro_batches: Sequence[Batch]) -> MemoryView:
        """What is known of the memory of a step that ran out of it."""
        job, strategy = self._program.job, self._program.strategy
        example = None
        with suppress(Exception):  # the user's own code, and there may be no memory left for it
            example = job.batch(strategy.micro_batch)
        return MemoryView(
            forecast=self._forecast,
            measured_peak_bytes=self._memory.bytes(),
            example=example,
            batch=micro_batches,
            strategy=strategy,
            device=self._program.device,
        )

    def _on_stall(self, stall: Stall) -> None:
        """From the watch's own thread: the user is told at once, the log at the next look."""
        self._reporter.display.note(stall.text)
        self._stalls.append(stall)
