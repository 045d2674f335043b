"""A MachineMeasurement as a roofline: PNG or SVG through matplotlib. machine_text has it in characters.

Several slants, one a cache, as in Ilic, Pratas and Sousa, "Cache-aware roofline model: upgrading the loft", IEEE Computer
Architecture Letters 13(1), 2014.
"""

from __future__ import annotations

import os
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.report.machine_picture_names import CHART, SIZE, bandwidth_unit, name_ridges, name_roofs, name_slants
from gpuwise.report.machine_text import LETTERS, drawn, has_intensity, ranges
from gpuwise.report.measure import GROUP_WORDS, in_order
from gpuwise.report.parts import number
from gpuwise.report.picture import COLOURS, ROOF, apart, check_picture, empty_figure, plain, save_figure, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from gpuwise.results.measurement import MachineMeasurement, MeasuredRow

FLAG = "--roofline-plot"
_MARKERS = "os^Dv<>P"  # by dtype, in their order
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
    figure = empty_figure(*SIZE, FLAG)
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
    _draw_operations(figure.add_axes(CHART), result, above=_LEGEND_LINE * max(map(len, explained)) + 0.03)
    for left, handles in zip((0.008, 0.12), explained, strict=True):
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(CHART[0] + CHART[2] + left, CHART[1] - 0.02),
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
    bandwidths = [value for level in result.memory for value in (level.measured, level.datasheet) if value]
    ends = [*bandwidths, *(row.bytes_per_s for row in rows)] or [1e9, 1e11]
    scale, unit = bandwidth_unit(result)
    low, high = min(ends) / 1.4 / scale, 1.5 * max(ends) / scale
    for level in result.memory:
        for value, style in ((level.datasheet, "-"), (level.measured, "--")):
            if value is not None:
                chart.axhline(value / scale, color=ROOF, linewidth=1.1, linestyle=style, zorder=1)
    targets = [log(level.measured / scale / low) / log(high / low) for level in result.memory]
    for level, position in zip(result.memory, apart(targets, 0.036, 0.0, 1.0), strict=True):
        chart.text(1.02, position, level.name, transform=chart.transAxes, fontsize=8.5, va="center", color=ROOF)
    for row in rows:
        _mark(chart, result, row, _touched(row), row.bytes_per_s / scale)
    least, most = min(map(_touched, rows), default=2**10), max(map(_touched, rows), default=2**30)
    chart.set_xscale("log", base=2)
    chart.set_yscale("log")
    chart.set_xlim(least / 4, most * 2)
    chart.set_ylim(low, high)
    ticks = [index for index in range(len(_PREFIXES)) if least / 4 < 2 ** (10 * index) < most * 2]
    chart.set_xticks([2 ** (10 * index) for index in ticks], [f"1 {_PREFIXES[index]}" for index in ticks])
    chart.set_xlabel("bytes touched by a run")
    chart.set_ylabel(unit)
    _numbered(chart, low, high)


def _touched(row: MeasuredRow) -> int:
    """What a run goes over, once or more."""
    return row.sizes.get("working_set_bytes", row.bytes)


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
    name_slants(chart, result, scale)
    name_roofs(chart, result, scale, unit, above)
    name_ridges(chart, result, scale)
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
