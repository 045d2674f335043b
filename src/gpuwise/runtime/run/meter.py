"""Meter: the clock of a run, which separates the program's own time from the wait for data."""

from __future__ import annotations

import statistics
import time
from array import array

from gpuwise.results.training import WARMUP_STEPS, StepTime, measured_step_time

RECENT_STEPS = 50  # steps in the median of the displayed step time


class Meter:
    """Starts on construction. Each optimizer step calls `fetch`, `begin` and `end`.

    `leave` and `back` enclose the caller's own work between steps; `back` includes the next `fetch`.

    Arguments:
        steps: steps of the whole run.
        global_batch: samples per step.
        before: steps taken before the run was resumed.
        spent_before_s: seconds of these steps.
    """

    def __init__(self, *, steps: int, global_batch: int, before: int = 0, spent_before_s: float = 0.0):
        self.steps, self.global_batch, self.before = steps, global_batch, before
        self._spent_before_s = spent_before_s
        self.step = before
        self.now_s = self._started_s = self._warm_s = time.perf_counter()
        self.step_time_s = self.data_s = 0.0  # of the latest step
        self._asked_s = self._begun_s = self._left_s = self.now_s
        self._warm_step, self._waited_s, self._paused_s = before, 0.0, 0.0
        self._all_waited_s = self._all_paused_s = 0.0
        self._pause_s = 0.0  # since the latest step: it counts once another has ended
        self._step_times_s = array("d")

    def fetch(self) -> None:
        """The loop asks for data."""
        self._asked_s = time.perf_counter()

    def begin(self) -> None:
        """The data is there; the program starts."""
        self._begun_s = time.perf_counter()
        self.data_s = self._begun_s - self._asked_s
        self._waited_s += self.data_s
        self._all_waited_s += self.data_s

    def end(self) -> None:
        """The program has finished a step."""
        self.now_s = time.perf_counter()
        self.step += 1
        self.step_time_s = self.now_s - self._begun_s
        self._step_times_s.append(self.step_time_s)
        self._paused_s += self._pause_s
        self._all_paused_s += self._pause_s
        self._pause_s = 0.0
        # The rate is told without the warm-up, unless there is nothing else.
        if self.done <= WARMUP_STEPS and self.step < self.steps:
            self._warm_step, self._warm_s, self._waited_s, self._paused_s = self.step, self.now_s, 0.0, 0.0

    def pause(self, seconds: float) -> None:
        """Time that is not training: evaluations and saves."""
        self._pause_s += seconds

    def leave(self) -> None:
        """The caller has the step: until `back`, the time is its own."""
        self._left_s = time.perf_counter()

    def back(self) -> None:
        """The caller wants the next step, and so its data."""
        self._asked_s = time.perf_counter()
        self._pause_s += self._asked_s - self._left_s

    @property
    def waits(self) -> tuple[float, float]:
        """Seconds since the start in which the loop waited for data, and in which it did something else than train."""
        return self._all_waited_s, self._all_paused_s + self._pause_s

    @property
    def done(self) -> int:
        """Steps of this run."""
        return self.step - self.before

    @property
    def samples(self) -> int:
        """Trained on, earlier runs included."""
        return self.step * self.global_batch

    @property
    def wall_s(self) -> float:
        return self.now_s - self._started_s

    @property
    def spent_s(self) -> float:
        """Seconds of the run, those before it was continued included."""
        return self._spent_before_s + self.wall_s

    @property
    def steps_per_s(self) -> float:
        """After warm-up, data loading counted, pauses not; of all steps while it lasts."""
        if self.step > self._warm_step:
            return (self.step - self._warm_step) / self._trained_s
        return self.done / max(1e-9, self.wall_s)

    @property
    def samples_per_s(self) -> float:
        return self.steps_per_s * self.global_batch

    @property
    def data_share(self) -> float:
        """Share of the time after warm-up, pauses left out, spent waiting for data; 0 while it lasts."""
        return self._waited_s / self._trained_s if self.step > self._warm_step else 0.0

    @property
    def step_time(self) -> StepTime:
        return measured_step_time(self._step_times_s)

    @property
    def recent_step_time_s(self) -> float:
        """Median of the latest steps; 0 before the first."""
        return statistics.median(self._step_times_s[-RECENT_STEPS:] or (0.0,))

    @property
    def _trained_s(self) -> float:
        """Seconds from the warm-up to the end of the latest step, pauses left out."""
        return max(1e-9, self.now_s - self._warm_s - self._paused_s)

    @property
    def remaining_s(self) -> float:
        return (self.steps - self.step) / self.steps_per_s
