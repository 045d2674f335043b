"""Stop: tells the training loop whether to continue."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.notes.training import last_save_not_begun
from gpuwise.runtime.interruption.deadline import Deadline, notice_end, slurm_end, time_limit
from gpuwise.runtime.interruption.notices import Notice, NoticeSource
from gpuwise.runtime.interruption.signals import StopSignals
from gpuwise.runtime.interruption.watcher import Watcher
from gpuwise.units import format_duration

LOOK_S = 10.0  # longest time between two checks of a deadline; steps and saves may become slower


@dataclass(frozen=True)
class StopRequest:
    """The reason why a run ends early.

    Attributes:
        kind: "signal", "notice" or "time limit".
        text: the signal's name, such as "SIGTERM", or a sentence.
        save: False if too little time is left for the last save.
        note: the note that says so.
    """

    kind: str
    text: str
    save: bool = True
    note: Note | None = None


class Stop:
    """A context that collects the signals, notices and deadlines of a run. The loop checks after each step:

        if stop.pending or now_s >= stop.look_s:
            request = stop.check(now_s, step_s, save_s)
            for note in stop.take_notes(): ...
            if request: break

    Attributes:
        pending: True when a signal or a notice has arrived.
        look_s: time of the next check of the deadlines; inf without deadlines.

    Arguments:
        time_limit_s: the user's limit in seconds.
        used_s: seconds of that limit that are over.
        source: source of notices; see `source_for`.
        environment: environment variables, in which Slurm announces the end of its job.
        clock: the clock of `now_s`, in seconds.
        unix_clock: the wall clock of notices and Slurm. It is read once per deadline, which is then kept on `clock`; a
            jump of the wall clock therefore moves no deadline.

    Raises InputError for an invalid time limit.
    """

    def __init__(
        self,
        *,
        time_limit_s: float | None = None,
        used_s: float = 0.0,
        source: NoticeSource | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        if time_limit_s is not None and not 0 < time_limit_s < math.inf:  # also refuses NaN
            raise InputError(f"a time limit must be above zero, got {time_limit_s!r}.", ["write it like 90min or 12h"])
        self.pending = False
        self.look_s = math.inf
        self._clock, self._unix_clock = clock, unix_clock
        self._signals = StopSignals(self._wake)
        self._watcher = Watcher(source, on_change=self._wake) if source else None
        self._notice: Notice | None = None
        self._problem_told = False
        self._announced: Deadline | None = None
        self._notes: list[str] = []

        environment = os.environ if environment is None else environment
        now_s = clock()
        slurm = slurm_end(environment, now_s=now_s, now_unix_s=unix_clock())
        self._allotted = [end for end in (slurm, time_limit_s and time_limit(time_limit_s, since_s=now_s - used_s)) if end]
        if slurm:
            self._notes.append(f"the Slurm job ends in {format_duration(slurm.at_s - now_s)}; the run saves and ends before.")
        if self._allotted:
            self.pending = True

    @property
    def _ends(self) -> list[Deadline]:
        return [*self._allotted, self._announced] if self._announced else self._allotted

    def __enter__(self) -> Stop:
        self._signals.__enter__()
        if self._watcher:
            self._watcher.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._watcher:
            self._watcher.__exit__(*error)
        self._signals.__exit__(*error)

    def check(self, now_s: float, step_s: float, save_s: float, copy_s: float = 0.0) -> StopRequest | None:
        """The reason to end the run now, or None.

        Arguments:
            now_s: the current time in seconds.
            step_s: expected seconds of another step; 0 if unknown.
            save_s: expected seconds of a save; 0 if unknown.
            copy_s: expected seconds of its copy to a folder elsewhere, for which time is left, too. A save that fits is made
                without.
        """
        self.pending = False  # reset before reading, so that a later arrival is seen at the next step
        self._listen(now_s)
        kept_s = save_s + copy_s
        end = min(self._ends, key=lambda end: end.spare_s(now_s, step_s, kept_s), default=None)
        if self._signals.received:
            return self._request("signal", self._signals.received.name, now_s, save_s)
        if end and end.must_stop(now_s, step_s, kept_s):
            return self._request(end.kind, end.text, now_s, save_s)
        self.look_s = now_s + min(LOOK_S, end.spare_s(now_s, step_s, kept_s) / 2) if end else math.inf
        return None

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the nearest end that is yet to come; None without one."""
        return min((end.at_s - now_s for end in self._ends if end.at_s > now_s), default=None)

    def take_notes(self) -> list[str]:
        """New sentences for the user since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def _listen(self, now_s: float) -> None:
        """Takes over the watcher's latest notice and problem."""
        if not self._watcher:
            return
        if self._watcher.problem and not self._problem_told:
            self._problem_told = True
            self._notes.append(self._watcher.problem)
        notice = self._watcher.latest
        if notice == self._notice:
            return
        self._notice = notice
        self._announced = notice_end(notice, now_s=now_s, now_unix_s=self._unix_clock()) if notice else None
        self._notes.append(notice.text if notice else "the interruption notice was withdrawn.")

    def _request(self, kind: str, text: str, now_s: float, save_s: float) -> StopRequest:
        short = min((end.at_s - now_s for end in self._ends if not end.save_fits(now_s, save_s)), default=None)
        if short is None:
            return StopRequest(kind, text)
        note = last_save_not_begun(save_s=save_s, left_s=short)
        return StopRequest(kind, text, save=False, note=note)

    def _wake(self) -> None:
        self.pending = True
