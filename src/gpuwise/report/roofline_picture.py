"""A Roofline as a picture: PNG or SVG through matplotlib, or text for a terminal."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.cost.roofline import Point, Roofline
from gpuwise.report.parts import number, percent, strategy_words
from gpuwise.report.picture import COLOURS, ROOF, LogGrid, check_picture, empty_figure, plain, save_figure, shortened
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAG = "--roofline-plot"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LEAST_SHARE = 0.005  # of the time that a point needs to be drawn
_MOST = 20


def save_picture(roofline: Roofline, path: str | os.PathLike[str]) -> Path:
    """Writes the picture as .png or .svg; the file is whole or is not there.

    Raises InputError for another ending or a folder that cannot be written, MissingDependencyError without matplotlib.
    """
    target = check_picture(path, FLAG)
    return save_figure(draw(roofline), target)


def drawn(roofline: Roofline) -> list[Point]:
    """The points that are shown, those that take most time first."""
    return [point for point in roofline.points if point.share >= _LEAST_SHARE][:_MOST]


def draw(roofline: Roofline) -> Figure:
    """The picture as a matplotlib Figure: kernels under the roofs of the datasheet and of the calibration, their area a share
    of the time. Those that only move bytes have no operations a byte: they stand in a chart of bandwidth beside it."""
    figure = empty_figure(13, 6.4, FLAG)
    _draw_bytes(figure.add_axes((0.055, 0.1, 0.14, 0.775)), roofline)
    _draw_operations(figure.add_axes((0.25, 0.1, 0.365, 0.775)), roofline)
    figure.text(0.055, 0.955, f"{roofline.job} on {roofline.device}", fontsize=14, fontweight="bold", va="center")
    figure.text(0.055, 0.915, strategy_words(roofline.strategy), fontsize=10, color="#555555", va="center")
    _draw_side(figure, roofline)
    return figure


def _range(roofline: Roofline) -> tuple[float, float]:
    """Of intensities: the left edge, where bytes alone are moved, and the right one."""
    intensities = [point.intensity for point in drawn(roofline) if point.intensity] or [1.0]
    ridges = list(roofline.ridges.values()) or [100.0]
    return min([*intensities, *ridges]) / 8, 4 * max([*intensities, *ridges])


def _draw_bytes(chart: Axes, roofline: Roofline) -> None:
    """Kernels that only move bytes, side by side, under the bandwidth."""
    memory = roofline.memory
    chart.axhline(memory.datasheet / 1e9, color=ROOF, linewidth=1.3)
    chart.axhline(memory.calibrated / 1e9, color=ROOF, linewidth=1.3, linestyle="--")
    chart.annotate(
        f"{memory.datasheet / 1e9:,.0f} GB/s, {percent(memory.calibrated / memory.datasheet)} reached",
        (1, memory.datasheet / 1e9),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color=ROOF,
    )
    only = [index for index, point in enumerate(drawn(roofline)) if point.intensity is None]
    for position, index in enumerate(only):
        _mark(chart, index, drawn(roofline)[index], position, drawn(roofline)[index].bytes_per_s / 1e9)
    chart.set_xlim(-1, max(len(only), 1))
    chart.set_ylim(0, 1.08 * max([memory.datasheet, *(drawn(roofline)[i].bytes_per_s for i in only)]) / 1e9)
    chart.set_xticks([])
    chart.set_xlabel("only bytes moved")
    chart.set_ylabel("GB/s")
    plain(chart)


def _draw_operations(chart: Axes, roofline: Roofline) -> None:
    """Kernels that do arithmetic, by operations a byte."""
    low, high = _range(roofline)
    x, memory = np.geomspace(low, high, 200), roofline.memory
    for roof in roofline.compute:
        for peak, bandwidth, style in (
            (roof.datasheet, memory.datasheet, "-"),
            (roof.calibrated, memory.calibrated, "--"),
            (roof.highest or roof.datasheet, memory.highest or memory.datasheet, ":"),
        ):
            chart.plot(x, np.minimum(peak, x * bandwidth) / 1e12, style, color=ROOF, linewidth=1.3, zorder=1)
        sentence = f"{roof.name} {number(roof.datasheet / 1e12)} TFLOP/s, {percent(roof.calibrated / roof.datasheet)} reached"
        chart.annotate(
            sentence,
            (high, roof.datasheet / 1e12),
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=ROOF,
        )
    for index, point in enumerate(drawn(roofline)):
        if point.intensity is not None:
            _mark(chart, index, point, point.intensity, point.flops_per_s / 1e12)
    chart.set_xscale("log")
    chart.set_yscale("log")
    chart.set_xlim(low, high)
    chart.set_xlabel("operations a byte of memory traffic")
    chart.set_ylabel("TFLOP/s")
    plain(chart)


def _mark(chart: Axes, index: int, point: Point, x: float, y: float) -> None:
    chart.scatter(
        [x],
        [y],
        s=40 + 2200 * point.share,
        color=COLOURS[index % len(COLOURS)],
        alpha=0.75,
        linewidth=0.6,
        edgecolor="white",
        zorder=3,
    )
    chart.annotate(_LETTERS[index], (x, y), ha="center", va="center", fontsize=8, zorder=4)


def _draw_side(figure: Figure, roofline: Roofline) -> None:
    """Beside the chart: what the points are."""
    left, y = 0.63, 0.88
    columns = ((left + 0.02, "left"), (0.845, "right"), (0.915, "right"), (0.985, "right"))
    heads = (roofline.by, "of the time", "reached", "of its roof")
    for (x, side), text in zip(columns, heads, strict=True):
        figure.text(x, y, text, ha=side, va="center", fontsize=9, fontweight="bold")
    for index, point in enumerate(drawn(roofline)):
        y -= 0.033
        figure.text(left, y, _LETTERS[index], va="center", fontsize=9, fontweight="bold", color=COLOURS[index % len(COLOURS)])
        for (x, side), text in zip(columns, (shortened(point.name, 30), *_figures(roofline, point)), strict=True):
            figure.text(x, y, text, ha=side, va="center", fontsize=9)
    y -= 0.05
    for words in _legend_lines(roofline, 68, "solid: datasheet; dashed: {reached}; dotted: what no kernel is priced beyond"):
        figure.text(left, y, words, va="center", fontsize=9, color="#444444")
        y -= 0.028


def _figures(roofline: Roofline, point: Point) -> tuple[str, str, str]:
    """Share of the time, speed, and how much that is of the datasheet's roof; a star where it is more than that."""
    share, only_bytes = roofline.share_of_roof(point), point.intensity is None
    speed = f"{point.bytes_per_s / 1e9:,.0f} GB/s" if only_bytes else f"{number(point.flops_per_s / 1e12)} TFLOP/s"
    reached = "" if share is None else percent(share) + "*" * roofline.is_beyond(point)
    return percent(point.share), speed, reached


def _legend_lines(roofline: Roofline, width: int, legend: str) -> list[str]:
    """What the roofs are, why some points are above them, and the sentence of the forecast."""
    rests = dict.fromkeys([roof.provenance for roof in (*roofline.compute, roofline.memory)])
    lines = wrap(legend.format(reached=f"what large kernels reach of the datasheet ({', '.join(rests)})"), width)
    if reasons := roofline.why_beyond(drawn(roofline)):
        lines += ["", *wrap(f"* faster than the datasheet: {'; '.join(reasons)}", width)]
    if roofline.forecast is not None:
        step = format_duration(roofline.forecast.step_time_s.value)
        lines += ["", *wrap(f"step time {step}; {roofline.forecast.why}", width)]
    return lines


def text_picture(roofline: Roofline, *, width: int = 72, height: int = 16) -> str:
    """The same in characters, at most `width` a line: the calibrated roof, points as letters, and what they are."""
    low, high = _range(roofline)
    points = [(_LETTERS[i], point, *_height(roofline, point, low)) for i, point in enumerate(drawn(roofline))]
    chart = width - _MARGIN
    x = np.geomspace(low / 1.6, high, chart)
    slanted = x * roofline.memory.calibrated / 1e12
    roof = np.minimum(max((c.calibrated for c in roofline.compute), default=np.inf) / 1e12, slanted)
    bottom, top = min([*(y for *_, y in points), float(roof[0])]) / 1.5, float(roof.max()) * 1.2
    grid = LogGrid(chart, height, (float(x[0]), float(x[-1])), (bottom, top))
    for across, up in zip(x.tolist(), roof.tolist(), strict=True):
        grid.put(across, up, "_" if up < across * roofline.memory.calibrated / 1e12 else "/")
    for letter, _, across, up in reversed(points):
        grid.put(across, max(up, bottom), letter)
    lines = [shortened(f"{roofline.job} on {roofline.device}: {strategy_words(roofline.strategy)}", width), ""]
    for line, row in enumerate(grid.lines()):
        label = number(top if line == 0 else bottom) + " T" if line in (0, height - 1) else ""
        lines.append(f"{label:>{_MARGIN - 2}} |" + row)
    lines += [
        f"{'FLOP/s':>{_MARGIN - 2}} +" + "-" * chart,
        " " * _MARGIN + f"{'bytes only':<{chart - 20}}{number(high) + ' FLOP/byte':>20}",
        "",
    ]
    names = width - 36
    lines.append(f"  {'':2}{roofline.by:<{names}}{'time':>6}{'reached':>15}{'of roof':>9}")
    for letter, point, *_ in points:
        share, speed, reached = _figures(roofline, point)
        lines.append(f"  {letter} {shortened(point.name, names - 1):<{names}}{share:>6}{speed:>15}{reached:>9}")
    for roof_ in (*roofline.compute, roofline.memory):
        unit, scale = ("GB/s", 1e9) if roof_ is roofline.memory else ("TFLOP/s", 1e12)
        lines.append(
            f"  {roof_.name}: {number(roof_.datasheet / scale)} {unit} by the datasheet, "
            f"{percent(roof_.calibrated / roof_.datasheet)} reached"
        )
    return "\n".join([*lines, "", *_legend_lines(roofline, width, "roof: {reached}")])


def _height(roofline: Roofline, point: Point, low: float) -> tuple[float, float]:
    """Where a point stands in the text picture: operations a byte, TFLOP/s. Kernels that only move bytes stand at the left
    edge, as far below the slanted roof as their bandwidth is below the device's."""
    if point.intensity is None:
        return low, low * point.bytes_per_s / 1e12
    return point.intensity, point.flops_per_s / 1e12


_MARGIN = 12  # characters of the axis and its labels
