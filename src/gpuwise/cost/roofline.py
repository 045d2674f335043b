"""The roofline of a step: operations per byte and speed of its kernels, under the ceilings of the chip.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. Ceilings come in two
kinds: what the datasheet says, and what the calibration gives the largest kernels. Above both lies what no kernel is priced
beyond: the clock that boards reach, and the speed of the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from gpuwise.cost.calibration import PROVENANCE, Calibration
from gpuwise.cost.calibration import calibration as shipped_calibration
from gpuwise.cost.forecast import Forecast
from gpuwise.cost.kernel_sizes import DTYPES
from gpuwise.cost.kernels import KernelTimes, kernel_times
from gpuwise.cost.kernels.limits import cache_bytes_per_s, why_beyond_memory, why_beyond_peak, winograd
from gpuwise.cost.memory.peak import grouped
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.single_kernel import kernel_forecast
from gpuwise.hardware.types import Chip
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy
from gpuwise.trace.trace import Trace

BY = ("kernels", "modules")
_BEYOND = 1.005  # of a roof: shown as more than 100 %
_SIDE, _MOVED_BYTES = 16384, 4 * 2**30  # of the kernels that show what the calibration gives at best


@dataclass(frozen=True)
class Ceiling:
    """A roof, of arithmetic (operations a second) or of memory (bytes a second).

    Attributes:
        name: numerics (bf16, tf32, ...), or "memory".
        datasheet: the catalog's figure; that of the matrix units, if they compute these numerics.
        calibrated: the rate that large kernels reach.
        provenance: source of `calibrated`.
        highest: upper limit of all forecast rates; None where unknown.
        beyond: why a kernel can be faster than the datasheet; "" if it cannot.
    """

    name: str
    datasheet: float
    calibrated: float
    provenance: str
    highest: float | None = None
    beyond: str = ""


@dataclass(frozen=True)
class Point:
    """The kernels of one class, or of one group of modules, in a step of one device.

    Attributes:
        name: name of the class or group.
        share: share of the device's time.
        calls: number of kernel calls.
        seconds, flops, bytes: totals of these kernels.
        ceiling: name of the arithmetic roof above the point; "" if there is none or more than one.
        provenance: main source of its figures.
    """

    name: str
    seconds: float
    share: float
    calls: int
    flops: int
    bytes: int
    ceiling: str
    provenance: str

    @property
    def intensity(self) -> float | None:
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "intensity": self.intensity, "flops_per_s": self.flops_per_s, "bytes_per_s": self.bytes_per_s}


@dataclass(frozen=True, repr=False)
class Roofline(Printed):
    """The points of a step under the ceilings of a chip, largest share of time first.

    Attributes:
        job: name of the job.
        device: name of the device.
        strategy: strategy of the step.
        points: the kernels.
        compute: arithmetic roofs in the numerics of the step, highest first.
        memory: the bandwidth roof.
        by: meaning of a point, one of BY.
        forecast: forecast of the step; None if it was not requested.
    """

    job: str
    device: str
    strategy: Strategy
    by: str
    points: tuple[Point, ...]
    compute: tuple[Ceiling, ...]
    memory: Ceiling
    forecast: Forecast | None = None

    @property
    def ridges(self) -> dict[str, float]:
        """The datasheet's ridge by numerics: operations a byte above which arithmetic is the lower roof."""
        return {roof.name: roof.datasheet / self.memory.datasheet for roof in self.compute}

    def roof_flops_per_s(self, point: Point) -> float | None:
        """The datasheet's roof above a point; None without arithmetic. Points of several numerics have the highest roof."""
        roof = next((roof for roof in self.compute if roof.name == point.ceiling), self.compute[0] if self.compute else None)
        if roof is None or point.intensity is None:
            return None
        return min(roof.datasheet, point.intensity * self.memory.datasheet)

    def share_of_roof(self, point: Point) -> float | None:
        """The share of the datasheet's roof that a point reaches; None without a roof."""
        if point.intensity is None:
            return point.bytes_per_s / self.memory.datasheet
        roof = self.roof_flops_per_s(point)
        return None if roof is None else point.flops_per_s / roof

    def is_beyond(self, point: Point) -> bool:
        """Whether a point is visibly above the datasheet's roof."""
        return (self.share_of_roof(point) or 0.0) > _BEYOND

    def why_beyond(self, points: Iterable[Point]) -> tuple[str, ...]:
        """The reasons why points are above the datasheet's roof."""
        reasons = []
        for point in filter(self.is_beyond, points):
            roof = self.roof_flops_per_s(point)
            arithmetic = [ceiling for ceiling in self.compute if ceiling.datasheet == roof]
            reasons += [ceiling.beyond for ceiling in arithmetic or [self.memory]]
        return tuple(reason for reason in dict.fromkeys(reasons) if reason)

    def to_dict(self) -> dict[str, object]:
        """The roofline in plain types."""
        return {
            "job": self.job,
            "device": self.device,
            "strategy": self.strategy.to_dict(),
            "by": self.by,
            "points": [point.to_dict() for point in self.points],
            "compute": [asdict(roof) for roof in self.compute],
            "memory": asdict(self.memory),
            "ridges": self.ridges,
        }


def roofline(
    trace: Trace,
    chip: Chip,
    *,
    by: str = "kernels",
    parameters: Parameters | None = None,
    calibration: Calibration | None = None,
) -> Roofline:
    """The kernels of a step under the roofs of a chip.

    Arguments:
        by: whether a point is a class of kernels or a group of modules.
        parameters, calibration: figures of the cost model; None takes the shipped ones.

        Raises the errors of `price` if the chip cannot run the trace.
    """
    assert by in BY, by
    parameters, calibration = parameters or shipped_parameters(), calibration or shipped_calibration(chip)
    times = kernel_times(trace, chip, parameters, calibration)
    compute = [
        _arithmetic(name, chip, parameters, calibration, convolutions=any(winograd(each, name) for each in times.names))
        for name in times.peaks
        if name in DTYPES and name in chip.peak_flops_per_s
    ]
    return Roofline(
        job=trace.header.job,
        device=chip.id,
        strategy=trace.header.strategy,
        by=by,
        points=_points(trace, times, by),
        compute=tuple(sorted(compute, key=lambda roof: -roof.datasheet)),
        memory=_bandwidth(chip, parameters, calibration),
    )


def _points(trace: Trace, times: KernelTimes, by: str) -> tuple[Point, ...]:
    operation, operations = trace.sequence.operation, trace.operations
    names: tuple[str, ...] = times.names
    label = times.kernel_class[operation]
    if by == "modules":
        starred = grouped(trace.modules)
        names = tuple(dict.fromkeys(starred))
        number = {name: index for index, name in enumerate(names)}
        label = np.array([number[name] for name in starred])[trace.sequence.module]

    def total(values: np.ndarray) -> np.ndarray:
        summed: np.ndarray = np.bincount(label, weights=values * trace.device_repeats, minlength=len(names))
        return summed

    seconds = total(times.device_s[operation])
    calls = total(np.ones(len(operation)))
    flops = total(operations.column("flops")[operation])
    moved = total((operations.column("bytes_read") + operations.column("bytes_written"))[operation])
    whole = max(float(seconds.sum()), 1e-30)
    points = []
    for index in np.argsort(-seconds, kind="stable").tolist():
        if seconds[index] <= 0:
            continue
        mine = operation[label == index]
        taken = np.bincount(times.kernel_class[mine], weights=times.device_s[mine], minlength=len(times.names))
        arithmetic = {times.names[c].partition(".")[2] for c in np.flatnonzero(taken)} - {""}
        level = times.figures[int(taken.argmax())].level
        points.append(
            Point(
                names[index] or "(root)",
                float(seconds[index]),
                float(seconds[index]) / whole,
                int(calls[index]),
                int(flops[index]),
                int(moved[index]),
                arithmetic.pop() if len(arithmetic) == 1 else "",
                PROVENANCE.get(level, PROVENANCE["family"]),
            )
        )
    return tuple(points)


def _arithmetic(name: str, chip: Chip, parameters: Parameters, calibration: Calibration, *, convolutions: bool) -> Ceiling:
    """The rate of a large matrix product in `name`."""
    product = kernel_forecast(
        "gemm", chip, dtype=name, sizes=dict.fromkeys("mnk", _SIDE), parameters=parameters, calibration=calibration
    )
    assert product.peak_flops_per_s is not None
    return Ceiling(
        name,
        product.peak_flops_per_s,
        product.flops / product.time_s.value,
        product.provenance,
        highest=product.highest_flops_per_s,
        beyond=why_beyond_peak(chip, convolutions=convolutions),
    )


def _bandwidth(chip: Chip, parameters: Parameters, calibration: Calibration) -> Ceiling:
    """The bandwidth of the fastest large kernel that moves bytes.

    Kernels fused in a compiled graph are left out, because they may seem to exceed the datasheet.
    """
    assert chip.memory_bandwidth_bytes_per_s is not None
    sizes = {"bytes_read": _MOVED_BYTES // 2, "bytes_written": _MOVED_BYTES // 2}
    reached = []
    for kind in ("copy", "elementwise", "optimizer"):
        kernel = kernel_forecast(kind, chip, dtype="fp32", sizes=sizes, parameters=parameters, calibration=calibration)
        if kernel.bytes / kernel.time_s.value <= chip.memory_bandwidth_bytes_per_s:
            reached.append((kernel.bytes / kernel.time_s.value, kernel.provenance))
    best, provenance = max(reached, default=(chip.memory_bandwidth_bytes_per_s, PROVENANCE["family"]))
    return Ceiling(
        "memory", chip.memory_bandwidth_bytes_per_s, best, provenance, cache_bytes_per_s(chip), why_beyond_memory(chip)
    )
