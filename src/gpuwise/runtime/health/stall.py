"""A run that stands still says so, and leaves behind where each of its threads stands."""

from __future__ import annotations

import faulthandler
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuwise.units import format_duration

LEAST_S, STEPS = 60.0, 20  # silent for longer than either, a run counts as stalled
# What may take long without being wrong: a first step compiles, an evaluation is the user's own code, and whoever takes
# the steps by hand may think between them.
PATIENCE_S = {"first step": 1200.0, "evaluation": 1200.0, "save": 600.0, "caller": math.inf}
TICK_S = 2.0
MOST_FILES = 20


@dataclass(frozen=True)
class Stall:
    """A run that stands still, or that goes on again.

    phase: what the run was at.
    silent_s: for how long.
    path: the threads' stacks; None where they could not be written, or it is over.
    over: the run goes on.
    text: a sentence.
    """

    phase: str
    silent_s: float
    path: Path | None
    over: bool
    text: str


class StallWatch:
    """Watches, while entered, that `beat` is called.

    The loop calls `beat(phase)` whenever it turns to something: "data", "step", "evaluation", "save", "caller"; it
    costs two attribute stores. `step_s`, the median step, is the loop's to set now and then; until it is, a step is the
    first.

    A thread looks every TICK_S. When the last beat is longer ago than max(LEAST_S, STEPS × step_s), or its phase's
    PATIENCE_S, it writes all threads' stacks to FOLDER/stalls/<n>.txt (nowhere, where folder is None) and calls `tell`,
    once a stall, and once more when the run goes on. A process that was itself stopped (Ctrl-Z, a machine that slept) has
    not stalled. While compiled code keeps Python's lock, nothing can look.

    Arguments:
        tell: called in the watch's own thread. waits_for: what a read of data waits for, in words, where that is known.
        clock: seconds. wait: sleeps for so long, true when it is to end; for tests.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        *,
        tell: Callable[[Stall], None],
        waits_for: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.step_s = 0.0
        self.phase = "step"
        self._beaten = True
        self._folder = None if folder is None else Path(folder) / "stalls"
        self._tell, self._clock, self._waits_for = tell, clock, waits_for
        self._beat_s = self._looked_s = clock()
        self._silent_phase = self.phase
        self._stalled = False
        self._files = 0
        self._end = threading.Event()
        self._wait = wait or self._end.wait
        self._thread = threading.Thread(target=self._run, name="gpuwise-stalls", daemon=True)

    def __enter__(self) -> StallWatch:
        self._beat_s = self._looked_s = self._clock()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def beat(self, phase: str = "step") -> None:
        self.phase = phase
        self._beaten = True

    def look(self) -> None:
        """One look, as the thread takes every TICK_S."""
        now_s = self._clock()
        beaten, self._beaten = self._beaten, False
        frozen = now_s - self._looked_s > LEAST_S / 2  # this thread did not run either
        self._looked_s = now_s
        if beaten or frozen:
            silent_s, self._beat_s = now_s - self._beat_s, now_s
            if self._stalled and beaten:
                self._stalled = False
                text = f"the run goes on after {format_duration(silent_s)} of silence in its {_said(self._silent_phase)}."
                self._tell(Stall(self._silent_phase, silent_s, None, True, text))
            return
        silent_s, phase = now_s - self._beat_s, self.phase
        patience_s = PATIENCE_S.get("first step" if phase == "step" and not self.step_s else phase, LEAST_S)
        if self._stalled or silent_s <= max(patience_s, STEPS * self.step_s):
            return
        self._stalled, self._silent_phase = True, phase
        path = self._dump(phase, silent_s)
        waits = self._waits_for() if phase == "data" else None
        where = (f", which waits for {waits}" if waits else "") + (f"; where its threads stand is in {path}" if path else "")
        text = f"the run has stood still for {format_duration(silent_s)} in its {_said(phase)}{where}."
        self._tell(Stall(phase, silent_s, path, False, text))

    def _run(self) -> None:
        while not self._wait(TICK_S):
            self.look()

    def _dump(self, phase: str, silent_s: float) -> Path | None:
        if self._folder is None or self._files >= MOST_FILES:
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files = max([self._files, *(int(old.stem) for old in self._folder.glob("*.txt") if old.stem.isdigit())]) + 1
            path = self._folder / f"{self._files}.txt"
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: silent for {silent_s:.0f} s in phase {phase!r}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError:  # a full disk may be what the run waits for
            return None
        return path


def _said(phase: str) -> str:
    return {"data": "reading of data"}.get(phase, phase)
