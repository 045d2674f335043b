"""What `validate` found: each job's forecast beside its measured step, and the errors over all. Plain data, no PyTorch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuwise.cost.forecast import Interval
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.results.measurement import Timing

# Counted up when a trial measures something else, so that figures of two methods are never compared.
METHOD = 1
MEASURED, OUT_OF_MEMORY, FAILED = "measured", "out of memory", "failed"


@dataclass(frozen=True)
class MeasuredStep:
    """A job's step as it ran.

    step: seconds, first steps left out. memory_bytes: live tensors at their most, None where that cannot be told;
    by_category: of it; reserved_bytes, device_bytes: of a GPU, with the allocator's cache and with the context. shares: of the
    step by what ran: "arithmetic" (matrix products, convolutions, attention, recurrent layers), "moving bytes", "overhead"
    (Python, and the device waiting for it).
    """

    step: Timing
    memory_bytes: int | None = None
    by_category: Mapping[str, int] = field(default_factory=dict)
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeasuredStep:
        return cls(**{**data, "step": Timing(**data["step"])})


@dataclass(frozen=True)
class Trial:
    """One job, forecast and then run, in a process of its own.

    Attributes:
        job: as it was named.
        outcome: MEASURED, OUT_OF_MEMORY or FAILED.
        message: why, where not measured; else "" (default).
        ways_out: what the user can do about that.
        forecast: Forecast.to_dict(); None where there was none.
        measured: the step as it ran; None where it did not.
        sizes: seq_len and image_size as the user gave them.
        digest: of the trace (gpuwise.trace.digest).
        device: PyTorch's name of it.
        threads: of PyTorch's operations; None where not known.
        torch_version: of the child; "" where not known.
        seconds: all of it took.
        disturbance_notes: what made the machine slower meanwhile.
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
        """What made the machine slower meanwhile, in sentences."""
        return sentences(self.disturbance_notes)

    @property
    def expected(self) -> Interval | None:
        """The step time that was forecast."""
        return None if self.forecast is None else Interval(**self.forecast["step_time_s"])

    @property
    def error(self) -> float | None:
        """Of the step time, signed, as a share of what was measured: +0.1 is a forecast 10 % too long."""
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
        """Of the peak of live bytes, signed, as a share of what was measured."""
        if self.forecast is None or self.measured is None or not self.measured.memory_bytes:
            return None
        return float(self.forecast["memory"]["peak_allocated_bytes"]) / self.measured.memory_bytes - 1

    @property
    def throughput(self) -> float | None:
        """MeasuredStep, in the forecast's unit."""
        if self.expected is None or self.measured is None or self.forecast is None:
            return None
        return float(self.forecast["throughput"]["value"]) * self.expected.value / self.measured.step.median_s

    @property
    def foreseen(self) -> bool | None:
        """Of a job that ran out of memory: whether the forecast said so. None where it could not or nothing ran out."""
        if self.outcome != OUT_OF_MEMORY or self.forecast is None or self.forecast["memory"]["fits"] is None:
            return None
        return not self.forecast["memory"]["fits"]

    def to_dict(self) -> dict[str, object]:
        measured = None
        if self.measured is not None:
            measured = {**asdict(self.measured), "throughput": self.throughput}
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
        machine: in words.
        chip: its catalog id.
        taken: date and time, UTC.
        seconds: all of it took.
        suite: whether they are of the suite. Default False.
        interrupted: Ctrl-C left jobs out. Default False.
        history: the file they were kept in; "" (default) where they were not.
        typed_notes: what the user should know; none by default.
        method: of measuring, METHOD.
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
        """Whether a trial gave no result; running out of memory is one."""
        return any(trial.outcome == FAILED for trial in self.trials)

    @property
    def summary(self) -> dict[str, float | None]:
        """Over all trials: counts by outcome; median and worst of the absolute errors, None without any; `inside` of
        `measured` lie inside their interval."""
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
