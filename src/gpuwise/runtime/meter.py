"""Meter: the clock of a run. Tells the program's own time from the time spent waiting for data."""

from __future__ import annotations

import statistics
import time
from array import array
from typing import Any

from gpuwise.cost.forecast import Interval
from gpuwise.runtime.progress import Update
from gpuwise.runtime.result import WARMUP_STEPS, StepTime, measured_step_time

RECENT_STEPS = 50  # what the displayed step time is the median of


class Meter:
    """Started when made; then, for each optimizer step of `global_batch` samples: `fetch`, `begin`, `end`."""

    def __init__(self, *, steps: int, global_batch: int, forecast: Interval | None = None):
        self.steps, self.global_batch, self.forecast = steps, global_batch, forecast
        self.step = 0
        self.first_loss = self.last_loss = float("nan")
        self.now_s = self._started_s = self._warm_s = time.perf_counter()
        self._before_s = self._asked_s = self._begun_s = self.now_s
        self._warm_step, self._waited_s = 0, 0.0
        self._step_times_s = array("d")

    def fetch(self) -> None:
        """The loop asks for data."""
        self._asked_s = time.perf_counter()

    def begin(self) -> None:
        """The data is there; the program starts."""
        self._begun_s = time.perf_counter()
        self._waited_s += self._begun_s - self._asked_s

    def end(self, loss: float) -> None:
        """The program has finished a step."""
        self._before_s, self.now_s = self.now_s, time.perf_counter()
        self.step += 1
        self._step_times_s.append(self.now_s - self._begun_s)
        self.last_loss = loss
        if self.step == 1:
            self.first_loss = loss
        # The rate is told without the warm-up, unless there is nothing else.
        if self.step <= WARMUP_STEPS and self.step < self.steps:
            self._warm_step, self._warm_s, self._waited_s = self.step, self.now_s, 0.0

    @property
    def samples(self) -> int:
        return self.step * self.global_batch

    @property
    def wall_s(self) -> float:
        return self.now_s - self._started_s

    @property
    def steps_per_s(self) -> float:
        """After warm-up, data loading counted; of all steps while it lasts."""
        if self.step > self._warm_step:
            return (self.step - self._warm_step) / (self.now_s - self._warm_s)
        return self.step / self.wall_s

    @property
    def data_share(self) -> float:
        """Share of the wall time after warm-up spent waiting for data; 0 while it lasts."""
        return self._waited_s / (self.now_s - self._warm_s) if self.step > self._warm_step else 0.0

    @property
    def step_time(self) -> StepTime:
        return measured_step_time(self._step_times_s)

    def record(self) -> dict[str, Any]:
        """The latest step, for the log."""
        return {"step": self.step, "samples": self.samples, "loss": self.last_loss,
                "step_time_s": self._step_times_s[-1],
                "samples_per_s": self.global_batch / (self.now_s - self._before_s)}  # fmt: skip

    def update(self) -> Update:
        """The run so far, for the display."""
        return Update(step=self.step, steps=self.steps, samples=self.samples, loss=self.last_loss,
                      step_time_s=statistics.median(self._step_times_s[-RECENT_STEPS:]),
                      samples_per_s=self.steps_per_s * self.global_batch,
                      remaining_s=(self.steps - self.step) / self.steps_per_s, forecast=self.forecast)  # fmt: skip
