"""TrainResult: the result of a training run, with its forecast for comparison."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gpuwise.errors import EXIT_INTERRUPTED, NotSavedError
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.strategy import HostSettings, Strategy

if TYPE_CHECKING:
    from torch import nn

# Warm-up steps, which pay for first touches of memory, kernel choice and compilation; measurements leave them out.
WARMUP_STEPS = 3


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step without data loading: median, 10th and 90th percentile over `steps` steps."""

    median_s: float
    low_s: float
    high_s: float
    steps: int


@dataclass(frozen=True)
class ForecastCheck:
    """The forecast step time with its interval, beside the measured median.

    `available` is the share of the requested processor time that other programs left to the run. The interval is for a free
    machine.
    """

    forecast_s: float
    low_s: float
    high_s: float
    measured_s: float
    available: float = 1.0

    @property
    def error(self) -> float:
        """Signed error as a share of the measured time: +0.1 is a forecast 10 % too long."""
        return self.forecast_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval, corrected for `available`."""
        return self.low_s <= self.measured_s <= self.high_s / self.available

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error, "inside": self.inside}


@dataclass(frozen=True)
class MemoryCheck:
    """The forecast memory peak beside the measured one, in bytes."""

    forecast_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Signed error as a share of the measured peak."""
        return self.forecast_bytes / self.measured_bytes - 1

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, repr=False)
class TrainResult(Printed):
    """A finished or interrupted run.

    Attributes:
        steps, samples, wall_s, usd: totals, with the earlier parts of a resumed run. wall_s is the time of the loop in
            seconds, without building the model and the last evaluation.
        samples_per_s: throughput after warm-up, data loading included.
        data_share: share of the wall time after warm-up that is spent waiting for data.
        peak_memory_bytes: peak memory of the process (on a GPU, of the device's allocator) minus its memory before the model
            was built; None where the system does not report it.
        metrics: the last metrics of job.evaluate.
        stopped: "finished" | "interrupted" | "early stop" | "time limit".
        stop_reason: the signal or notice that ended the run.
        typed_notes: notes for the user.
        resumed_from: the step after which the run was continued.
        checkpoints: count, last_step, bytes, held_up_s, interval_s and a sentence; None without a folder.
        best: step, metric and value of the best monitored metric.
        skipped_steps: number of steps whose loss or gradients were not finite.
        mfu: model operations a second, divided by the device's peak.
        model: the trained model, in evaluation mode.
        loss_parts: named numbers returned with the last loss.
        job_argument: the JOB argument as the user typed it; "" for a Job object.
        unsaved: files that could not be written at the end, in sentences.
    """

    job: str
    device: str
    strategy: Strategy
    steps: int
    samples: int
    first_loss: float
    last_loss: float
    step_time: StepTime
    samples_per_s: float
    data_share: float
    wall_s: float
    peak_memory_bytes: int | None
    metrics: dict[str, float]
    stopped: str
    stop_reason: str | None
    synthetic: bool
    forecast: ForecastCheck | None
    memory_check: MemoryCheck | None
    typed_notes: tuple[Note, ...]
    log_path: str | None
    run_folder: str | None
    resumed_from: int | None
    checkpoints: dict[str, Any] | None
    best: dict[str, Any] | None
    usd: float | None
    skipped_steps: int
    spikes: int
    mfu: float | None
    learning_rate: float
    model: nn.Module = field(repr=False, compare=False)
    loss_parts: dict[str, float] = field(default_factory=dict)
    job_argument: str = ""
    unsaved: tuple[str, ...] = ()
    host: HostSettings = field(default_factory=HostSettings)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return sentences(self.typed_notes)

    @property
    def interrupted(self) -> bool:
        """Whether something outside ended the run before its last step."""
        return self.stopped in ("interrupted", "time limit")

    @property
    def exit_code(self) -> int:
        """Exit code of `gpuwise train` with this result."""
        if self.unsaved:
            return NotSavedError.exit_code
        return EXIT_INTERRUPTED if self.interrupted else 0

    def to_dict(self) -> dict[str, object]:
        """The result in plain types, without the model."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("model", "host")}
        return values | {
            "strategy": {**self.strategy.to_dict(), **self.host.to_dict()},
            "step_time": asdict(self.step_time),
            "interrupted": self.interrupted,
            "forecast": self.forecast and self.forecast.to_dict(),
            "memory_check": self.memory_check and self.memory_check.to_dict(),
            "metrics": dict(self.metrics),
            "notes": list(self.notes),
            "typed_notes": to_dicts(self.typed_notes),
            "unsaved": list(self.unsaved),
        }


def measured_step_time(step_times_s: Sequence[float]) -> StepTime:
    """The step time without the warm-up steps.

    In a run no longer than the warm-up only the last step counts. Zeros without steps.
    """
    if not step_times_s:
        return StepTime(0.0, 0.0, 0.0, 0)
    kept = sorted(step_times_s[min(WARMUP_STEPS, len(step_times_s) - 1) :])
    last = len(kept) - 1
    return StepTime(statistics.median(kept), kept[round(0.1 * last)], kept[round(0.9 * last)], len(kept))
