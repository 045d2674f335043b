"""RunHealth: monitors a run's memory, its stalls, other programs on its processors, and notes of its data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.job.job import Batch
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.health import MemoryView, Stall, StallWatch
from gpuwise.runtime.ranks import ALONE, Ranks
from gpuwise.runtime.run.memory import PeakMemory
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.neighbours import Neighbours
from gpuwise.runtime.run.reporter import Reporter


class RunHealth:
    """A context that monitors a run: the loop calls `look` a few times per second, and a thread detects stalls.

    Arguments:
        memory: peak memory, counted since before the model was built.
        forecast: memory forecast, for an out-of-memory error.
        folder: of the run, for the stacks of a stall; None writes none.
        ranks: the ranks of the run; each watches itself.

    Attributes:
        memory_bytes: memory at the last check; None before the first, or if the system does not provide it.
        stall: the stall watch; the loop calls its `beat` at each change of phase.
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
        folder: Path | None = None,
        ranks: Ranks = ALONE,
    ):
        self.memory_bytes: int | None = None
        prefix = f"rank{ranks.rank}-" if ranks.several else ""
        self.stall = StallWatch(folder, tell=self._on_stall, waits_for=loader.waits_for, prefix=prefix)
        self._program, self._loader, self._memory, self._forecast = program, loader, memory, forecast
        self._reporter, self._meter = reporter, meter
        # Other ranks on this machine would count as other programs.
        watches = program.device.type == "cpu" and not ranks.several
        self._neighbours = Neighbours(torch.get_num_threads()) if watches else None
        self._stalls: deque[Stall] = deque()
        self._noted = len(loader.notes)  # reading an iterable may add notes

    def __enter__(self) -> RunHealth:
        self.stall.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.stall.__exit__(*error)

    def look(self) -> None:
        """Reports new findings since the last call."""
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
        """Peak bytes since before the model was built; None if the system does not provide them."""
        return self._memory.bytes()

    def free_share(self) -> float:
        """The share of the requested processor time that other programs have left to the run."""
        return 1.0 if self._neighbours is None else self._neighbours.available()

    def memory_view(self, micro_batches: Sequence[Batch]) -> MemoryView:
        """The state of memory in a step that ran out of it."""
        job, strategy = self._program.job, self._program.strategy
        example = None
        with suppress(Exception):  # the user's own code may fail, also for lack of memory
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
        """Called in the watch's thread. Informs the user at once; `look` writes the log."""
        self._reporter.display.note(stall.text)
        self._stalls.append(stall)
