"""The results of `validate`: forecasts beside measured steps, and their errors. Plain data, no PyTorch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpuwise.cost.forecast import Interval
from gpuwise.json_types import Json
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.results.measurement import Timing

# Incremented when the method of a trial changes, so that figures of two methods are never compared.
METHOD = 1
MEASURED, OUT_OF_MEMORY, FAILED = "measured", "out of memory", "failed"


@dataclass(frozen=True)
class MeasuredRank:
    """One rank of a measured step.

    Attributes:
        rank: its number.
        median_s: median seconds of its steps.
        memory_bytes: peak of its live tensors; None where it cannot be measured.
    """

    rank: int
    median_s: float
    memory_bytes: int | None = None


@dataclass(frozen=True)
class MeasuredStep:
    """The measured step of a job. Of several ranks: time of the slowest, memory of the one that needs most.

    Attributes:
        step: seconds, without the first steps.
        memory_bytes: peak of live tensors; None where it cannot be measured.
        by_category: memory_bytes by category.
        reserved_bytes: peak of a GPU's allocator, with its cache; None (default) elsewhere.
        device_bytes: the same with the device context; None (default) elsewhere.
        shares: shares of the step's time: "arithmetic" (matrix products, convolutions, attention, recurrent layers), "moving
            bytes", "overhead" (Python, and the device waiting for it). None (default) of several ranks.
        ranks: every rank of a mesh, by number; none (default) for a single device.
    """

    step: Timing
    memory_bytes: int | None = None
    by_category: Mapping[str, int] = field(default_factory=dict)
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    ranks: tuple[MeasuredRank, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeasuredStep:
        ranks = tuple(MeasuredRank(**rank) for rank in data.get("ranks", ()))
        return cls(**{**data, "step": Timing(**data["step"]), "ranks": ranks})

    def to_dict(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def of_ranks(cls, steps: Sequence[MeasuredStep]) -> MeasuredStep:
        """The step of a mesh from those of all its ranks, by number."""
        ranks = tuple(MeasuredRank(rank, one.step.median_s, one.memory_bytes) for rank, one in enumerate(steps))
        slowest = max(steps, key=lambda one: one.step.median_s)
        return replace(max(steps, key=lambda one: one.memory_bytes or 0), step=slowest.step, ranks=ranks)


@dataclass(frozen=True)
class Trial:
    """One job that was forecast and then run in a process of its own.

    Attributes:
        job: the job's name as the user typed it.
        outcome: MEASURED, OUT_OF_MEMORY or FAILED.
        message: why there is no measurement; "" (default) if there is one.
        ways_out: ways to solve that.
        forecast: Forecast.to_dict(); None without a forecast.
        measured: the measured step; None if it did not run.
        sizes: the user's seq_len and image_size.
        digest: digest of the trace (gpuwise.trace.digest).
        device: PyTorch's name of the device.
        threads: threads of PyTorch's operations; None where unknown.
        torch_version: PyTorch's version in the child process; "" where unknown.
        seconds: duration of the trial.
        disturbance_notes: what slowed the machine down during the trial.
    """

    job: str
    outcome: str
    message: str = ""
    ways_out: tuple[str, ...] = ()
    forecast: Mapping[str, Any] | None = None
    measured: MeasuredStep | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""
    device: str = ""
    threads: int | None = None
    torch_version: str = ""
    seconds: float = 0.0
    disturbance_notes: tuple[Note, ...] = ()

    @property
    def disturbed(self) -> tuple[str, ...]:
        """The disturbances of the trial as sentences."""
        return sentences(self.disturbance_notes)

    @property
    def expected(self) -> Interval | None:
        """The forecast step time."""
        return None if self.forecast is None else Interval(**self.forecast["step_time_s"])

    @property
    def error(self) -> float | None:
        """Signed error of the step time as a share of the measured time: +0.1 is a forecast 10 % too long."""
        if self.expected is None or self.measured is None:
            return None
        return self.expected.value / self.measured.step.median_s - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured median lies inside the forecast's interval."""
        if self.expected is None or self.measured is None:
            return None
        return self.expected.low <= self.measured.step.median_s <= self.expected.high

    @property
    def memory_error(self) -> float | None:
        """Signed error of the peak of live bytes, as a share of the measured peak."""
        if self.forecast is None or self.measured is None or not self.measured.memory_bytes:
            return None
        return float(self.forecast["memory"]["peak_allocated_bytes"]) / self.measured.memory_bytes - 1

    @property
    def throughput(self) -> float | None:
        """Measured throughput in the forecast's unit."""
        if self.expected is None or self.measured is None or self.forecast is None:
            return None
        return float(self.forecast["throughput"]["value"]) * self.expected.value / self.measured.step.median_s

    @property
    def foreseen(self) -> bool | None:
        """Whether the forecast predicted that the job runs out of memory. None if it could not, or if the job did not."""
        if self.outcome != OUT_OF_MEMORY or self.forecast is None or self.forecast["memory"]["fits"] is None:
            return None
        return not self.forecast["memory"]["fits"]

    def to_dict(self) -> dict[str, object]:
        measured = None
        if self.measured is not None:
            measured = {**self.measured.to_dict(), "throughput": self.throughput}
        names = ("digest", "device", "threads", "torch_version", "seconds")
        return {
            "job": self.job,
            "outcome": self.outcome,
            "said": self.message,
            **{name: getattr(self, name) for name in names},
            "ways_out": list(self.ways_out),
            "disturbed": list(self.disturbed),
            "disturbance_notes": to_dicts(self.disturbance_notes),
            "sizes": dict(self.sizes),
            "forecast": self.forecast,
            "measured": measured,
            "step_error": self.error,
            "inside": self.inside,
            "memory_error": self.memory_error,
            "foreseen": self.foreseen,
        }


@dataclass(frozen=True, repr=False)
class Validation(Printed):
    """All trials of one call.

    Attributes:
        machine: the machine in words.
        chip: catalog id of its chip.
        taken: date and time, UTC.
        seconds: total duration.
        suite: whether the jobs are members of the suite. Default False.
        interrupted: whether Ctrl-C left jobs out. Default False.
        history: path of the history file with the measurements; "" (default) if they were not stored.
        typed_notes: notes for the user; none by default.
        method: version of the measuring method, METHOD.
    """

    trials: tuple[Trial, ...]
    machine: str
    chip: str
    taken: str
    seconds: float
    suite: bool = False
    interrupted: bool = False
    history: str = ""
    typed_notes: tuple[Note, ...] = ()
    method: int = METHOD

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return sentences(self.typed_notes)

    @property
    def failed(self) -> bool:
        """Whether a trial gave no result. Running out of memory is a result."""
        return any(trial.outcome == FAILED for trial in self.trials)

    @property
    def summary(self) -> dict[str, float | None]:
        """A summary of all trials.

        It has counts by outcome and the median and worst absolute errors (None without any). `inside` of the `measured` trials
        lie inside their interval.
        """
        errors = [abs(trial.error) for trial in self.trials if trial.error is not None]
        memory = [abs(trial.memory_error) for trial in self.trials if trial.memory_error is not None]
        return {
            "trials": len(self.trials),
            "measured": sum(trial.outcome == MEASURED for trial in self.trials),
            "out_of_memory": sum(trial.outcome == OUT_OF_MEMORY for trial in self.trials),
            "failed": sum(trial.outcome == FAILED for trial in self.trials),
            "median_error": statistics.median(errors) if errors else None,
            "worst_error": max(errors, default=None),
            "inside": sum(trial.inside is True for trial in self.trials),
            "median_memory_error": statistics.median(memory) if memory else None,
            "worst_memory_error": max(memory, default=None),
        }

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise validate --json`."""
        names = ("machine", "chip", "taken", "seconds", "suite", "interrupted", "history", "method")
        return {
            "trials": [trial.to_dict() for trial in self.trials],
            "summary": self.summary,
            **{name: getattr(self, name) for name in names},
            "notes": list(self.notes),
            "typed_notes": to_dicts(self.typed_notes),
        }
