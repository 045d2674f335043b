"""The results of `measure`: microbenchmarks, the ceilings they give, and disturbances. Plain data, no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuwise.notes import Note, sentences
from gpuwise.printed import Printed

# Incremented when the method of a microbenchmark changes, so that figures of two methods are never compared.
METHOD = 2
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
    """Seconds of one run: median, 10th and 90th percentile, and minimum over `rounds` rounds."""

    median_s: float
    low_s: float
    high_s: float
    least_s: float
    rounds: int

    @property
    def spread(self) -> float:
        """Half the distance between the percentiles, as a share of the median."""
        return (self.high_s - self.low_s) / (2 * self.median_s)


@dataclass(frozen=True)
class MeasuredRow:
    """One microbenchmark.

    Attributes:
        group: one of GROUPS.
        name: name in words.
        timing: seconds of one run.
        dtype: bf16, fp32, ...; "" (default) where none matters.
        sizes: sizes of the operation by name.
        flops: least operations of one run.
        bytes: least bytes moved by one run.
        verified: whether the result was checked against an independent computation. Default True.
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
        """The inverse of to_dict."""
        values = {name: data[name] for name in cls.__dataclass_fields__ if name != "timing"}
        return cls(timing=Timing(**data["timing"]), **values)


@dataclass(frozen=True)
class AchievedPeak:
    """The highest arithmetic rate in a dtype, in operations a second.

    Attributes:
        measured: the rate that was reached.
        datasheet: the rate in the datasheet; None without one.
        shape: shape of the product that reached `measured`, in words.
        spread: spread of its timing (Timing.spread).
    """

    dtype: str
    measured: float
    datasheet: float | None = None
    shape: str = ""
    spread: float = 0.0


@dataclass(frozen=True)
class MemoryLevel:
    """The bandwidth of a cache or of the memory, in bytes a second.

    Attributes:
        name: L1, L2, L3 or memory.
        size_bytes: size of the cache; None for the memory.
        datasheet: bandwidth in the datasheet; None without one.
    """

    name: str
    measured: float
    size_bytes: int | None = None
    datasheet: float | None = None
    spread: float = 0.0


@dataclass(frozen=True)
class Progress:
    """The progress of a measurement: `done` of `total` microbenchmarks, `what` runs now, and the latest figure in `row`."""

    done: int
    total: int
    what: str
    row: MeasuredRow | None = None


@dataclass(frozen=True, repr=False)
class MachineMeasurement(Printed):
    """One run of `gpuwise measure`.

    Attributes:
        machine: the machine in words.
        chip: catalog id of its chip, or id of the local entry.
        device: PyTorch's device type, such as cpu, cuda or mps.
        taken: date and time, UTC.
        seconds: total duration.
        quick: whether it was the quick sweep.
        complete: False if Ctrl-C (`interrupted` is then True) or killed benchmarks ended it early.
        rows: all microbenchmarks.
        peaks: arithmetic ceilings by dtype, highest first.
        memory: bandwidths from the nearest cache outwards; the memory is last.
        typed_notes: disturbances and omissions.
        calibration: path of the file that forecasts on `here` use now; "" if none was written.
        error: median of |forecast / measured - 1| over training steps outside the fit; None where unknown.
        detected: gpuwise.hardware.detect.DetectedMachine in plain types.
        method: METHOD at the time of the measurement.
        torch_version: PyTorch's version.
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
        """The measured ridge by dtype: operations a byte above which arithmetic is the lower roof."""
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
