"""The names of roofs, slants and ridge points in the picture of a machine: along them, beside them, and never on each other."""

from __future__ import annotations

from math import atan2, degrees, log
from typing import TYPE_CHECKING

from gpuwise.report.parts import number, percent
from gpuwise.report.picture import ROOF, apart
from gpuwise.results.measurement import MachineMeasurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (13.0, 6.8)
CHART = (0.315, 0.095, 0.415, 0.68)  # left, bottom, width, height, as shares of the figure


def bandwidth_unit(result: MachineMeasurement) -> tuple[float, str]:
    """That of the memory, and of what is faster."""
    return (1e12, "TB/s") if result.memory and result.memory[-1].measured >= 1e12 else (1e9, "GB/s")


_BEHIND = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6}


def name_slants(chart: Axes, result: MachineMeasurement, scale: float) -> None:
    """Along each slant; a name moves along it where it would touch the one before."""
    (low, high), (bottom, top) = chart.get_xlim(), chart.get_ylim()
    wide, tall = SIZE[0] * CHART[2] / log(high / low), SIZE[1] * CHART[3] / log(top / bottom)
    unit_bytes, unit = bandwidth_unit(result)
    before, along = None, 0.02
    for level in reversed(result.memory):
        above = max(level.measured, level.datasheet or 0.0)
        near = before is not None and abs(log(above / before)) * tall < 0.2  # inches
        along = along + 0.2 if near else 0.02
        x = max(low, bottom * scale / above) * (high / low) ** along
        chart.annotate(
            f"{level.name} {_of(level.measured, level.datasheet, unit_bytes, unit)}",
            (x, x * above / scale),
            xytext=(-2, 4),
            textcoords="offset points",
            fontsize=8.5,
            color=ROOF,
            zorder=2,
            rotation=degrees(atan2(tall, wide)),
            rotation_mode="anchor",
            bbox=_BEHIND,
        )
        before = above


def name_roofs(chart: Axes, result: MachineMeasurement, scale: float, unit: str, above: float) -> None:
    """In the margin, one under the other, with a thin line from each roof."""
    bottom, top = chart.get_ylim()
    targets = [log(peak.measured / scale / bottom) / log(top / bottom) for peak in result.peaks]
    for peak, at, position in zip(result.peaks, targets, apart(targets, 0.045, above, 0.98), strict=True):
        _lead(chart, (1.0, at), (1.03, position))
        chart.text(
            1.036,
            position,
            f"{peak.dtype}  {_of(peak.measured, peak.datasheet, scale, unit)}",
            transform=chart.transAxes,
            fontsize=9,
            va="center",
            color=ROOF,
        )


def name_ridges(chart: Axes, result: MachineMeasurement, scale: float) -> None:
    """Where a roof meets the memory's slant as measured: a diamond, and its name above the chart."""
    (low, high), (bottom, top) = chart.get_xlim(), chart.get_ylim()
    peaks = {peak.dtype: peak.measured / scale for peak in result.peaks}
    targets = [log(ridge / low) / log(high / low) for ridge in result.ridges.values()]
    for (dtype, ridge), at, position in zip(result.ridges.items(), targets, apart(targets, 0.075, 0.0, 0.97), strict=True):
        chart.plot([ridge, ridge], [bottom, peaks[dtype]], ":", color="#888888", linewidth=0.9, zorder=1)
        chart.plot([ridge], [peaks[dtype]], "D", color=ROOF, markersize=5, zorder=4)
        _lead(chart, (at, log(peaks[dtype] / bottom) / log(top / bottom)), (at, 1.0), (position, 1.03))
        chart.text(
            position,
            1.04,
            f"{dtype}: {number(ridge)} operations a byte",
            transform=chart.transAxes,
            fontsize=8.5,
            rotation=30,
            rotation_mode="anchor",
            color=ROOF,
        )


def _lead(chart: Axes, *points: tuple[float, float]) -> None:
    """A thin line through points of the axes, beyond them too."""
    chart.plot(*zip(*points, strict=True), color="#999999", linewidth=0.7, transform=chart.transAxes, clip_on=False, zorder=1)


def _of(measured: float, datasheet: float | None, scale: float, unit: str) -> str:
    """'412 of 530 GFLOP/s (78 %)', or '412 GFLOP/s'."""
    if datasheet is None:
        return f"{number(measured / scale)} {unit}"
    return f"{number(measured / scale)} of {number(datasheet / scale)} {unit} ({percent(measured / datasheet)})"
