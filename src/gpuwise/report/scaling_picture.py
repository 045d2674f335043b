"""A ScalingCurve as a picture: SVG without further packages, or text for a terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from gpuwise.plan.scaling.curve import ScalingCurve, ScalingPoint
from gpuwise.report.forecast import scale_of, unit_of
from gpuwise.report.parts import percent, rate
from gpuwise.report.picture import COLOURS, LogGrid, check_picture, save_text
from gpuwise.report.scaling import title
from gpuwise.report.svg_chart import decades, ticks
from gpuwise.units import counted, format_count, format_usd

FLAG = "--plot"
_WIDTH, _HEIGHT = 1040, 380
_PANEL, _GAP, _LEFT, _TOP, _BOTTOM = 265.0, 82.0, 66.0, 92.0, 318.0
_COLUMNS, _ROWS = 66, 16
_IDEAL = "#8a8a8a"


@dataclass(frozen=True)
class _Line:
    """One line of a panel: values over devices, in words."""

    name: str
    points: Sequence[tuple[int, float]]
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class _Panel:
    """A chart over devices.

    Attributes:
        name: what it shows.
        lines: at least one point in all.
        show: a value in words, for the axis.
        logarithmic: the vertical axis; else it begins at zero.
    """

    name: str
    lines: Sequence[_Line]
    show: Callable[[float], str]
    logarithmic: bool = False


def save_picture(curve: ScalingCurve, path: str | os.PathLike[str]) -> Path:
    """Writes the picture as .svg; the file is whole or is not there. Raises InputError for another ending or folder."""
    target = check_picture(path, FLAG, (".svg",))
    return save_text(svg(curve), target)


def svg(curve: ScalingCurve) -> str:
    """Throughput beside a linear one, efficiency beside what is waited for, and the cost where it is known."""
    counts = [point.devices for point in curve.points]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="11" fill="#444444">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="20" y="28" font-size="15" font-weight="bold" fill="black">{escape(title(curve))}</text>',
        f'<text x="20" y="48" font-size="12">{escape(curve.conclusion)}</text>',
    ]
    for index, panel in enumerate(_panels(curve)):
        parts.append(_drawn(panel, counts, _LEFT + index * (_PANEL + _GAP)))
    return "\n".join([*parts, "</svg>\n"])


def _panels(curve: ScalingCurve) -> list[_Panel]:
    fitting = [point for point in curve.points if point.fits is not False] or list(curve.points)
    first, unit = fitting[0], fitting[0].forecast.throughput_unit
    linear = [(point.devices, first.forecast.throughput_per_device * point.devices) for point in fitting]
    panels = [
        _Panel(
            unit,
            [_Line("linear", linear, _IDEAL, dashed=True), _Line("forecast", _throughputs(fitting), COLOURS[0])],
            format_count,
            logarithmic=True,
        ),
        _Panel("share", _shares(fitting), percent),
    ]
    costs = [(p.devices, p.forecast.usd_per_million / 1e6) for p in fitting if p.forecast.usd_per_million is not None]
    if costs:
        many, word = scale_of(min(cost for _, cost in costs))
        line = _Line("cost", [(devices, cost * many) for devices, cost in costs], COLOURS[2])
        panels.append(_Panel(f"a {word} {unit_of(first.forecast)}", [line], format_usd))
    return panels


def _throughputs(points: Sequence[ScalingPoint]) -> list[tuple[int, float]]:
    return [(point.devices, point.forecast.throughput) for point in points]


def _shares(points: Sequence[ScalingPoint]) -> list[_Line]:
    lines = [
        _Line("efficiency", [(p.devices, p.efficiency) for p in points if p.efficiency is not None], COLOURS[0]),
        _Line("waits for communication", [(p.devices, p.communication) for p in points], COLOURS[1]),
    ]
    if any(point.bubble for point in points):
        lines.append(_Line("pipeline bubble", [(p.devices, p.bubble) for p in points], COLOURS[3]))
    return lines


def _drawn(panel: _Panel, counts: Sequence[int], left: float) -> str:
    """A panel: grid, ticks, lines with their names."""
    values = [value for line in panel.lines for _, value in line.points]
    low, high = (min(values) / 1.3, max(values) * 1.3) if panel.logarithmic else (0.0, max(values) * 1.12 or 1.0)

    def x(devices: float) -> float:
        if counts[-1] == counts[0]:
            return left + _PANEL / 2
        return left + _PANEL * math.log(devices / counts[0]) / math.log(counts[-1] / counts[0])

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if panel.logarithmic else value / high
        return _BOTTOM - share * (_BOTTOM - _TOP)

    marks = decades(low, high) if panel.logarithmic else ticks(low, high, 5)
    parts = [f'<text x="{left:.0f}" y="{_TOP - 22:.0f}" font-size="12" font-weight="bold">{escape(panel.name)}</text>']
    for mark in marks:
        parts.append(
            f'<line x1="{left:.1f}" x2="{left + _PANEL:.1f}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="#00000018"/>'
            f'<text x="{left - 6:.1f}" y="{y(mark) + 4:.1f}" text-anchor="end">{escape(panel.show(mark))}</text>'
        )
    every = 1 + (len(counts) - 1) // 7
    for devices in counts[::-1][::every][::-1]:
        parts.append(f'<text x="{x(devices):.1f}" y="{_BOTTOM + 18:.0f}" text-anchor="middle">{devices:,}</text>')
    parts.append(f'<text x="{left + _PANEL / 2:.1f}" y="{_BOTTOM + 38:.0f}" text-anchor="middle">devices</text>')
    for line in panel.lines:
        corners = " ".join(f"{x(devices):.1f},{y(value):.1f}" for devices, value in line.points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>')
        if not line.dashed:
            parts += [f'<circle cx="{x(n):.1f}" cy="{y(v):.1f}" r="3" fill="{line.colour}"/>' for n, v in line.points]
    names = "".join(f'<tspan fill="{line.colour}" dx="8">{escape(line.name)}</tspan>' for line in panel.lines)
    parts.append(f'<text x="{left - 8:.1f}" y="{_TOP - 6:.0f}">{names}</text>')
    return "\n".join(parts)


def text_picture(curve: ScalingCurve) -> str:
    """Throughput over devices, both logarithmic, beside a linear one."""
    fitting = [point for point in curve.points if point.fits is not False] or list(curve.points)
    first, last = fitting[0], fitting[-1]
    linear = first.forecast.throughput_per_device
    throughputs = [point.forecast.throughput for point in fitting]
    low, high = min(throughputs) / 1.1, max(*throughputs, linear * last.devices) * 1.1
    grid = LogGrid(_COLUMNS, _ROWS, (first.devices / 1.05, last.devices * 1.05), (low, high))
    for step in range(2 * _COLUMNS):
        devices = first.devices * (last.devices / first.devices) ** (step / (2 * _COLUMNS - 1))
        grid.put(devices, linear * devices, "·")
    for point in fitting:
        grid.put(point.devices, point.forecast.throughput, "●")
    unit = first.forecast.throughput_unit
    begins = counted(first.devices, "device")
    axis = begins + counted(last.devices, "device").rjust(_COLUMNS - len(begins))
    legend = f"● {rate(first.forecast.throughput, unit)} to {rate(last.forecast.throughput, unit)}   · linear"
    return "\n".join([title(curve), legend, *(f"│{line}" for line in grid.lines()), "└" + "─" * _COLUMNS, f" {axis}"])
