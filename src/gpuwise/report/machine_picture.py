"""A MachineMeasurement as a roofline: PNG or SVG through matplotlib. machine_text has it in characters.

Several slants, one a cache, as in Ilic, Pratas and Sousa, "Cache-aware roofline model: upgrading the loft", IEEE Computer
Architecture Letters 13(1), 2014.
"""

from __future__ import annotations

import os
from math import atan2, degrees, log
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.report.machine_text import LETTERS, drawn, has_intensity, ranges
from gpuwise.report.measure import GROUP_WORDS, in_order
from gpuwise.report.parts import number, percent
from gpuwise.report.picture import COLOURS, ROOF, apart, check_picture, empty_figure, plain, save_figure, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from gpuwise.results.measurement import MachineMeasurement, MeasuredRow

FLAG = "--roofline-plot"
_MARKERS = "os^Dv<>P"  # by dtype, in their order
_SIZE = (13.0, 6.8)
_CHART = (0.315, 0.095, 0.415, 0.68)  # left, bottom, width, height, as shares of the figure
_STRIP = (0.055, 0.095, 0.175, 0.68)
_LEGEND_LINE = 0.038  # height of a line of the legend, as a share of the chart's
_PREFIXES = ("B", "KiB", "MiB", "GiB", "TiB")


def save_picture(result: MachineMeasurement, path: str | os.PathLike[str]) -> Path:
    """Writes the picture as .png or .svg; the file is whole or is not there.

    Raises InputError for another ending or a folder that cannot be written, MissingDependencyError without matplotlib.
    """
    target = check_picture(path, FLAG)
    return save_figure(draw(result), target)


def draw(result: MachineMeasurement) -> Figure:
    """The picture as a matplotlib Figure: roofs of the datasheet (solid) and as measured (dashed), of each dtype and of each
    memory level, their ridge points, and the benchmarks under them. Benchmarks without arithmetic have no operations a byte:
    they stand by the bytes they touch, in a chart of bandwidth beside it."""
    figure = empty_figure(*_SIZE, FLAG)
    figure.text(_STRIP[0], 0.962, shortened(result.machine, 100), fontsize=14, fontweight="bold", va="center")
    early = "" if result.complete else ", ended early"
    figure.text(
        _STRIP[0],
        0.922,
        f"{'quick' if result.quick else 'full'} sweep of {result.taken}{early}",
        fontsize=10,
        color="#555555",
        va="center",
    )
    _draw_bytes(figure.add_axes(_STRIP), result)
    explained = _legend(result)
    _draw_operations(figure.add_axes(_CHART), result, above=_LEGEND_LINE * max(map(len, explained)) + 0.03)
    for left, handles in zip((0.008, 0.12), explained, strict=True):
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(_CHART[0] + _CHART[2] + left, _CHART[1] - 0.02),
            frameon=False,
            fontsize=9,
            labelspacing=0.4,
        )
    return figure


def _colour(group: str) -> str:
    return COLOURS[list(LETTERS).index(group) % len(COLOURS)]


def _marker(result: MachineMeasurement, dtype: str) -> str:
    return _MARKERS[_dtypes(result).index(dtype) % len(_MARKERS)]


def _dtypes(result: MachineMeasurement) -> list[str]:
    """Those with a roof first, in its order."""
    return list(dict.fromkeys([*(peak.dtype for peak in result.peaks), *(row.dtype for row in drawn(result))]))


def _draw_bytes(chart: Axes, result: MachineMeasurement) -> None:
    """Benchmarks that are there for the bytes, by how many they touch; caches show as steps."""
    rows = [row for row in drawn(result) if not has_intensity(row)]
    known = [value for level in result.memory for value in (level.measured, level.datasheet) if value]
    ends = [*known, *(row.bytes_per_s for row in rows)] or [1e9, 1e11]
    scale, unit = _bandwidth_unit(result)
    low, high = min(ends) / 1.4 / scale, 1.5 * max(ends) / scale
    for level in result.memory:
        for value, style in ((level.datasheet, "-"), (level.measured, "--")):
            if value is not None:
                chart.axhline(value / scale, color=ROOF, linewidth=1.1, linestyle=style, zorder=1)
    wanted = [log(level.measured / scale / low) / log(high / low) for level in result.memory]
    for level, place in zip(result.memory, apart(wanted, 0.036, 0.0, 1.0), strict=True):
        chart.text(1.02, place, level.name, transform=chart.transAxes, fontsize=8.5, va="center", color=ROOF)
    for row in rows:
        _mark(chart, result, row, _touched(row), row.bytes_per_s / scale)
    least, most = min(map(_touched, rows), default=2**10), max(map(_touched, rows), default=2**30)
    chart.set_xscale("log", base=2)
    chart.set_yscale("log")
    chart.set_xlim(least / 4, most * 2)
    chart.set_ylim(low, high)
    ticks = [place for place in range(len(_PREFIXES)) if least / 4 < 2 ** (10 * place) < most * 2]
    chart.set_xticks([2 ** (10 * place) for place in ticks], [f"1 {_PREFIXES[place]}" for place in ticks])
    chart.set_xlabel("bytes touched by a run")
    chart.set_ylabel(unit)
    _numbered(chart, low, high)


def _touched(row: MeasuredRow) -> int:
    """What a run goes over, once or more."""
    return row.sizes.get("working_set_bytes", row.bytes)


def _bandwidth_unit(result: MachineMeasurement) -> tuple[float, str]:
    """That of the memory, and of what is faster."""
    return (1e12, "TB/s") if result.memory and result.memory[-1].measured >= 1e12 else (1e9, "GB/s")


_BEHIND = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6}


def _numbered(chart: Axes, low: float, high: float) -> None:
    """Numbers a person reads on a logarithmic axis: 1, 2, 5, 10, ..., fewer where it spans more, and more where less."""
    steps = (1,) if high / low > 300 else (1, 2, 5) if high / low > 20 else (1, 2, 3, 4, 6, 8)
    ticks = [tick for power in range(-9, 12) for step in steps if low <= (tick := step * 10.0**power) <= high]
    chart.set_yticks(ticks, [number(tick) for tick in ticks])
    chart.minorticks_off()
    plain(chart)


def _draw_operations(chart: Axes, result: MachineMeasurement, *, above: float) -> None:
    """Benchmarks that do arithmetic, by operations a byte, under the roofs. above: where names beside the chart may begin."""
    (low, high), (bottom, top) = ranges(result)
    scale, unit = (1e12, "TFLOP/s") if top >= 2e12 else (1e9, "GFLOP/s")
    chart.set_xscale("log")
    chart.set_yscale("log")
    chart.set_xlim(low, high)
    chart.set_ylim(bottom / scale, top / scale)
    _draw_roofs(chart, result, scale)
    _name_slants(chart, result, scale)
    _name_roofs(chart, result, scale, unit, above)
    _name_ridges(chart, result, scale)
    for row in drawn(result):
        if has_intensity(row):
            _mark(chart, result, row, row.flops / row.bytes, max(row.flops_per_s, bottom * 1.02) / scale)
    if not (result.peaks or result.memory):
        chart.text(0.5, 0.5, "nothing was measured", transform=chart.transAxes, ha="center", color="#777777")
    ticks = [10.0**power for power in range(-6, 9) if low <= 10.0**power <= high]
    chart.set_xticks(ticks, [number(tick) for tick in ticks])
    chart.set_xlabel("operations a byte of memory traffic")
    chart.set_ylabel(unit)
    _numbered(chart, bottom / scale, top / scale)


def _draw_roofs(chart: Axes, result: MachineMeasurement, scale: float) -> None:
    """Slants up to the highest roof they meet, roofs from the steepest slant on; the memory's slant is the bold one."""
    left, (_, high) = 1e-6, chart.get_xlim()
    for style, which in (("-", "datasheet"), ("--", "measured")):
        peaks = [value for peak in result.peaks if (value := getattr(peak, which)) is not None]
        slants = [value for level in result.memory if (value := getattr(level, which)) is not None]
        for slant in slants:
            end, width = max(peaks) / slant if peaks else high, 1.4 if slant == min(slants) else 0.9
            chart.plot([left, end], [left * slant / scale, end * slant / scale], style, color=ROOF, linewidth=width, zorder=1)
        for peak in peaks:
            begin = peak / max(slants) if slants else left
            chart.plot([begin, high], [peak / scale] * 2, style, color=ROOF, linewidth=1.3, zorder=1)


def _name_slants(chart: Axes, result: MachineMeasurement, scale: float) -> None:
    """Along each slant; a name moves along it where it would touch the one before."""
    (low, high), (bottom, top) = chart.get_xlim(), chart.get_ylim()
    wide, tall = _SIZE[0] * _CHART[2] / log(high / low), _SIZE[1] * _CHART[3] / log(top / bottom)
    unit_bytes, unit = _bandwidth_unit(result)
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


def _name_roofs(chart: Axes, result: MachineMeasurement, scale: float, unit: str, above: float) -> None:
    """In the margin, one under the other, with a thin line from each roof."""
    bottom, top = chart.get_ylim()
    wanted = [log(peak.measured / scale / bottom) / log(top / bottom) for peak in result.peaks]
    for peak, at, place in zip(result.peaks, wanted, apart(wanted, 0.045, above, 0.98), strict=True):
        _lead(chart, (1.0, at), (1.03, place))
        chart.text(
            1.036,
            place,
            f"{peak.dtype}  {_of(peak.measured, peak.datasheet, scale, unit)}",
            transform=chart.transAxes,
            fontsize=9,
            va="center",
            color=ROOF,
        )


def _name_ridges(chart: Axes, result: MachineMeasurement, scale: float) -> None:
    """Where a roof meets the memory's slant as measured: a diamond, and its name above the chart."""
    (low, high), (bottom, top) = chart.get_xlim(), chart.get_ylim()
    peaks = {peak.dtype: peak.measured / scale for peak in result.peaks}
    wanted = [log(ridge / low) / log(high / low) for ridge in result.ridges.values()]
    for (dtype, ridge), at, place in zip(result.ridges.items(), wanted, apart(wanted, 0.075, 0.0, 0.97), strict=True):
        chart.plot([ridge, ridge], [bottom, peaks[dtype]], ":", color="#888888", linewidth=0.9, zorder=1)
        chart.plot([ridge], [peaks[dtype]], "D", color=ROOF, markersize=5, zorder=4)
        _lead(chart, (at, log(peaks[dtype] / bottom) / log(top / bottom)), (at, 1.0), (place, 1.03))
        chart.text(
            place,
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


def _mark(chart: Axes, result: MachineMeasurement, row: MeasuredRow, x: float, y: float) -> None:
    chart.scatter(
        [x],
        [y],
        s=34,
        color=_colour(row.group),
        marker=_marker(result, row.dtype),
        alpha=0.8,
        linewidth=0.5,
        edgecolor="white",
        zorder=3,
    )


def _legend(result: MachineMeasurement) -> tuple[list[Line2D], list[Line2D]]:
    """What solid and dashed are and dtypes by marker; groups by colour. Both stand low beside the chart."""
    from matplotlib.lines import Line2D

    def dot(label: str, colour: str, marker: str) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, color=colour, markeredgecolor="white", markersize=7, label=label)

    rows = drawn(result)
    how = [Line2D([], [], color=ROOF, linestyle="--", linewidth=1.3, label="measured here")]
    if any(figure is not None for figure in (*(p.datasheet for p in result.peaks), *(m.datasheet for m in result.memory))):
        how.insert(0, Line2D([], [], color=ROOF, linewidth=1.3, label="datasheet"))
    how += [dot("ridge point", ROOF, "D")] * bool(result.ridges)
    if len(dtypes := {row.dtype for row in rows} - {""}) > 1:
        how += [dot(dtype, "#555555", _marker(result, dtype)) for dtype in _dtypes(result) if dtype in dtypes]
    return how, [dot(GROUP_WORDS[group], _colour(group), "o") for group in in_order(rows)]
