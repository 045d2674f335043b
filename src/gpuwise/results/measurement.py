"""What `measure` found: rows of microbenchmarks, the ceilings that follow, and what disturbed it. Plain data, no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuwise.notes import Note, sentences
from gpuwise.printed import Printed

# Counted up when a microbenchmark measures something else, so that figures of two methods are never compared.
METHOD = 1
GROUPS = (
    "memory",
    "gemm",
    "conv",
    "attention",
    "elementwise",
    "reduction",
    "norm",
    "optimizer",
    "other",
    "step",
    "copy",
    "collective",
)


@dataclass(frozen=True)
class Timing:
    """Seconds of one run over `rounds` rounds: median, 10th and 90th percentile, and the shortest."""

    median_s: float
    low_s: float
    high_s: float
    least_s: float
    rounds: int

    @property
    def spread(self) -> float:
        """Half the distance of the percentiles, as a share of the median."""
        return (self.high_s - self.low_s) / (2 * self.median_s)


@dataclass(frozen=True)
class MeasuredRow:
    """One microbenchmark.

    group: of GROUPS. name: in words. dtype: bf16, fp32, ...; "" where none matters. sizes: by name. flops, bytes: of a run, at
    the least. verified: whether its result was checked against one computed otherwise.
    """

    group: str
    name: str
    timing: Timing
    dtype: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0
    verified: bool = True

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.timing.median_s

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.timing.median_s

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "flops_per_s": self.flops_per_s, "bytes_per_s": self.bytes_per_s}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeasuredRow:
        """What to_dict gave."""
        values = {name: data[name] for name in cls.__dataclass_fields__ if name != "timing"}
        return cls(timing=Timing(**data["timing"]), **values)


@dataclass(frozen=True)
class AchievedPeak:
    """A ceiling of arithmetic in a dtype, operations a second. datasheet: None where no sheet is known; shape: of the product
    that reached `measured`, in words; spread: of its timing (Timing.spread)."""

    dtype: str
    measured: float
    datasheet: float | None = None
    shape: str = ""
    spread: float = 0.0


@dataclass(frozen=True)
class MemoryLevel:
    """A cache or the memory, bytes a second. name: L1, L2, L3, memory. size_bytes: None for the memory. datasheet: None where
    none is known."""

    name: str
    measured: float
    size_bytes: int | None = None
    datasheet: float | None = None
    spread: float = 0.0


@dataclass(frozen=True)
class Progress:
    """How far a measurement is: `done` of `total` microbenchmarks; `what` runs now; row: the latest figure."""

    done: int
    total: int
    what: str
    row: MeasuredRow | None = None


@dataclass(frozen=True, repr=False)
class MachineMeasurement(Printed):
    """One run of `gpuwise measure`.

    Attributes:
        machine: in words.
        chip: its catalog id, or that of the local entry.
        device: PyTorch's name, cpu or cuda.
        taken: date and time, UTC.
        seconds: that it took.
        quick: whether it was the quick sweep.
        complete: False where Ctrl-C (then `interrupted`, too) or benchmarks that were killed ended it early.
        rows: every microbenchmark.
        peaks: by dtype, highest first.
        memory: from the nearest cache outwards; the last is the memory.
        typed_notes: what disturbed it, or was left out.
        calibration: path of the file that forecasts on `here` use now; "" where none was written.
        error: median of |forecast / measured - 1| of training steps that the fit did not see; None where not known.
        detected: gpuwise.hardware.detect.DetectedMachine as plain types.
        method: METHOD when it was taken.
        torch_version: of the PyTorch that ran.
    """

    machine: str
    chip: str
    device: str
    taken: str
    seconds: float
    quick: bool
    complete: bool
    interrupted: bool
    rows: tuple[MeasuredRow, ...]
    peaks: tuple[AchievedPeak, ...]
    memory: tuple[MemoryLevel, ...]
    typed_notes: tuple[Note, ...] = ()
    calibration: str = ""
    error: float | None = None
    detected: Mapping[str, object] = field(default_factory=dict)
    method: int = METHOD
    torch_version: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return sentences(self.typed_notes)

    @property
    def ridges(self) -> dict[str, float]:
        """By dtype: operations a byte from which on arithmetic is the lower roof, as measured."""
        return {peak.dtype: peak.measured / self.memory[-1].measured for peak in self.peaks} if self.memory else {}

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise measure --json`."""
        data: dict[str, object] = {}
        for name, value in asdict(self).items():
            if name == "typed_notes":
                data["notes"] = list(self.notes)
            data[name] = value
        return {
            **data,
            "rows": [row.to_dict() for row in self.rows],
            "ridges": self.ridges,
            "detected": dict(self.detected),
        }
