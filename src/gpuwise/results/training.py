"""What a training run gives back: TrainResult, and the forecast held against it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.strategy import HostSettings, Strategy

if TYPE_CHECKING:
    from torch import nn

# Steps that pay for first touches of memory, kernel choice and compilation; left out of what is called measured.
WARMUP_STEPS = 3


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, data loading not counted: median, 10th and 90th percentile over `steps` steps."""

    median_s: float
    low_s: float
    high_s: float
    steps: int


@dataclass(frozen=True)
class ForecastCheck:
    """The step time that was forecast, with its interval, against the median that was measured.

    available: share of the processor time the run wanted that other programs left it; the interval is of a free machine.
    """

    forecast_s: float
    low_s: float
    high_s: float
    measured_s: float
    available: float = 1.0

    @property
    def error(self) -> float:
        """Signed, as a share of what was measured: +0.1 is a forecast 10 % too long."""
        return self.forecast_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the time measured lies in the interval of what was available."""
        return self.low_s <= self.measured_s <= self.high_s / self.available

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error, "inside": self.inside}


@dataclass(frozen=True)
class MemoryCheck:
    """The peak that was forecast against what was measured, in bytes."""

    forecast_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Signed, as a share of what was measured."""
        return self.forecast_bytes / self.measured_bytes - 1

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, repr=False)
class TrainResult(Printed):
    """A finished or interrupted run.

    stopped: "finished" | "interrupted" | "early stop" | "time limit"; stop_reason: the signal or notice. steps, samples,
    wall_s, usd: earlier parts of a resumed run included; resumed_from: the step it was continued after.
    samples_per_s: after warm-up, data loading counted. data_share: of the wall time after warm-up, the part spent waiting
    for data. wall_s: the loop, without building and the last evaluation. peak_memory_bytes: what the process (on a GPU: the
    device's allocator) held at most, above what it held before the model was built; None where the system does not say.
    metrics: what job.evaluate gave last; best: step, metric and value of the one monitored. skipped_steps: whose loss or
    gradients were no numbers. mfu: model operations against the device's peak. checkpoints: count, last_step, bytes,
    held_up_s, interval_s and a sentence; None without a folder. typed_notes: what the user should know.
    loss_parts: named numbers that the last loss came with. unsaved: what was to be on the disk in the end and is not, in
    sentences. job_argument: what the user calls the job, "" for a Job object. model: as trained, in evaluation mode.
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

    def to_dict(self) -> dict[str, object]:
        """Plain types, everything but the model."""
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
    """Leaves the warm-up steps out; of a run no longer than the warm-up, only the last step counts. Zeros without steps."""
    if not step_times_s:
        return StepTime(0.0, 0.0, 0.0, 0)
    kept = sorted(step_times_s[min(WARMUP_STEPS, len(step_times_s) - 1) :])
    last = len(kept) - 1
    return StepTime(statistics.median(kept), kept[round(0.1 * last)], kept[round(0.9 * last)], len(kept))
