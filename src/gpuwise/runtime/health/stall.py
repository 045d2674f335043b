"""Detects a stalled run, informs the user and writes the stacks of all threads."""

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

LEAST_S, STEPS = 60.0, 20  # a run is stalled after the longer of LEAST_S and STEPS median steps
# Longer limits in seconds for phases that may be slow: a first step compiles, an evaluation is the user's own code, and
# a caller that steps by hand may pause between steps.
PATIENCE_S = {"first step": 1200.0, "evaluation": 1200.0, "save": 600.0, "caller": math.inf}
TICK_S = 2.0
MOST_FILES = 20


@dataclass(frozen=True)
class Stall:
    """The beginning or end of a stall.

    Attributes:
        phase: phase of the run during the stall.
        silent_s: duration of the stall in seconds.
        path: file with the threads' stacks; None if it could not be written, or at the end of a stall.
        over: whether the run has resumed.
        text: a sentence for the user.
    """

    phase: str
    silent_s: float
    path: Path | None
    over: bool
    text: str


class StallWatch:
    """A context that checks that `beat` is called regularly.

    The loop calls `beat(phase)` when it enters a phase: "data", "step", "evaluation", "save" or "caller". A call costs
    two attribute stores. The loop also sets `step_s`, the median step, from time to time; until then a step counts as the
    first step.

    A thread checks every TICK_S. The run has stalled when the last beat is older than max(LEAST_S, STEPS × step_s), or
    than its phase's PATIENCE_S. The thread then writes all threads' stacks to FOLDER/stalls/<n>.txt and calls `tell`. It
    calls `tell` once per stall and once when the run resumes.

    A process that was itself stopped (Ctrl-Z, a suspended machine) has not stalled. The thread cannot run while compiled
    code holds the GIL.

    Arguments:
        folder: folder of the run; None writes no stacks.
        tell: called in the watch's thread.
        waits_for: describes the object that a read of data waits for; None if unknown.
        prefix: begins the names of the files, where several ranks write to one folder.
        clock: a clock in seconds.
        wait: sleeps for the given seconds and returns true to end the thread; for tests.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        *,
        tell: Callable[[Stall], None],
        waits_for: Callable[[], str | None] = lambda: None,
        prefix: str = "",
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.step_s = 0.0
        self.phase = "step"
        self._beaten = True
        self._folder = None if folder is None else Path(folder) / "stalls"
        self._tell, self._clock, self._waits_for, self._prefix = tell, clock, waits_for, prefix
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
        """Performs one check."""
        now_s = self._clock()
        beaten, self._beaten = self._beaten, False
        frozen = now_s - self._looked_s > LEAST_S / 2  # this thread was stopped, too
        self._looked_s = now_s
        if beaten or frozen:
            silent_s, self._beat_s = now_s - self._beat_s, now_s
            if self._stalled and beaten:
                self._stalled = False
                text = (
                    f"the run goes on after {format_duration(silent_s)} of silence in its {_phase_words(self._silent_phase)}."
                )
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
        text = f"the run has stood still for {format_duration(silent_s)} in its {_phase_words(phase)}{where}."
        self._tell(Stall(phase, silent_s, path, False, text))

    def _run(self) -> None:
        while not self._wait(TICK_S):
            self.look()

    def _dump(self, phase: str, silent_s: float) -> Path | None:
        if self._folder is None or self._files >= MOST_FILES:
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            numbers = [old.stem.removeprefix(self._prefix) for old in self._folder.glob(f"{self._prefix}*.txt")]
            self._files = max([self._files, *(int(number) for number in numbers if number.isdigit())]) + 1
            path = self._folder / f"{self._prefix}{self._files}.txt"
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: silent for {silent_s:.0f} s in phase {phase!r}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError:  # a full disk may be the cause of the stall
            return None
        return path


def _phase_words(phase: str) -> str:
    return {"data": "reading of data"}.get(phase, phase)
