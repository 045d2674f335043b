"""A ParetoFront as a picture: SVG without further packages, PNG through matplotlib, or text for a terminal."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.plan.pareto import ParetoFront, ParetoPoint
from gpuwise.report.parts import UNKNOWN, offer_words
from gpuwise.report.picture import COLOURS, LogGrid, check_picture, empty_figure, plain, save_figure, save_text, shortened
from gpuwise.report.svg_chart import decades
from gpuwise.units import format_duration, format_usd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAG = "--plot"
_WIDTH, _HEIGHT = 1040.0, 560.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 90.0, 560.0, 76.0, 500.0  # of the chart; the list of points stands right of it
_COLUMNS, _ROWS = 66, 18
_MOST = 24  # points that are named
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TIMES_S = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
_LIMIT, _OTHER = COLOURS[1], "#b8b8b8"


@dataclass(frozen=True)
class _Ends:
    """The ends of both axes, and what stands for no cost on a logarithmic one."""

    hours: tuple[float, float]
    usd: tuple[float, float]
    least_usd: float

    @classmethod
    def of(cls, front: ParetoFront) -> _Ends:
        """They hold every point of the front and the limits, and other plans within three times of them."""
        hours = [point.hours for point in front.points] + [front.deadline_h] * (front.deadline_h is not None)
        usd = [point.usd for point in front.points] + [front.budget_usd] * (front.budget_usd is not None)
        positive = [value for value in usd if value and value > 0] or [1.0]
        least = min(positive) / 3 if 0 in usd else min(positive)
        across = [value for value in hours if value is not None]
        return cls((min(across) / 1.5, max(across) * 3), (least / 1.5, max(positive) * 3), least)

    def cost(self, usd: float) -> float:
        return max(usd, self.least_usd)

    def holds(self, hours: float, usd: float) -> bool:
        return self.hours[0] <= hours <= self.hours[1] and self.usd[0] <= self.cost(usd) <= self.usd[1]


def save_picture(front: ParetoFront, path: str | os.PathLike[str]) -> Path:
    """Writes the picture as .svg or .png; the file is whole or is not there.

    Raises InputError for another ending or a folder that cannot be written, MissingDependencyError for a .png without
    matplotlib.
    """
    target = check_picture(path, FLAG)
    if target.suffix.lower() == ".svg":
        return save_text(svg(front), target)
    return save_figure(draw(front), target)


def named(front: ParetoFront) -> list[tuple[str, ParetoPoint]]:
    """The points that are named, fastest first, each with its letter: those of the table, and as many others, evenly spread."""
    points = list(front.points)
    if len(points) > _MOST:
        kept = {index for index, point in enumerate(points) if point.rank is not None or index in (0, len(points) - 1)}
        rest = [index for index in range(len(points)) if index not in kept]
        room = max(0, _MOST - len(kept))
        kept |= {rest[int(step * len(rest) / room)] for step in range(room)}
        points = [points[index] for index in sorted(kept)][: len(_LETTERS)]
    return list(zip(_LETTERS, points, strict=False))


def title(front: ParetoFront) -> str:
    return f"{front.job}: time, money and energy"


def _cells(point: ParetoPoint) -> tuple[str, str, str, str]:
    """What a point is, its time, its money and its energy."""
    rank = f" ({point.rank})" if point.rank is not None else ""
    what = f"{point.count:g} x {point.device}{rank}, {offer_words(point.offer)}, {point.offer.terms}"
    energy = UNKNOWN if point.energy_kwh is None else f"{point.energy_kwh:,.3g} kWh" if point.energy_kwh < 1000 else ""
    energy = energy or f"{(point.energy_kwh or 0) / 1000:,.3g} MWh"
    return what, format_duration(point.hours * 3600), format_usd(point.usd), energy


def _limits(front: ParetoFront) -> list[str]:
    words = [f"deadline {format_duration(front.deadline_h * 3600)}"] if front.deadline_h is not None else []
    return words + ([f"budget {format_usd(front.budget_usd)}"] if front.budget_usd is not None else [])


def svg(front: ParetoFront) -> str:
    """Money over time, both logarithmic: plans on the front as letters, the others in grey, and the limits."""
    ends = _Ends.of(front)

    def x(hours: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * _share(hours, ends.hours)

    def y(usd: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * _share(ends.cost(usd), ends.usd)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="#444444">',
        f'<rect width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" fill="white"/>',
        f'<text x="20" y="30" font-size="15" font-weight="bold" fill="black">{escape(title(front))}</text>',
        '<text x="20" y="50">letters: no plan is better in all three; grey: the other plans</text>',
    ]
    for time_s in _times(ends):
        at = x(time_s / 3600)
        parts.append(_line(at, at, _TOP, _BOTTOM, "#00000018"))
        parts.append(f'<text x="{at:.1f}" y="{_BOTTOM + 18:.0f}" text-anchor="middle">{format_duration(time_s)}</text>')
    for money in decades(*ends.usd):
        parts.append(_line(_LEFT, _RIGHT, y(money), y(money), "#00000018"))
        parts.append(f'<text x="{_LEFT - 8:.0f}" y="{y(money) + 4:.1f}" text-anchor="end">{format_usd(money)}</text>')
    for hours, usd in front.others:
        if ends.holds(hours, usd):
            parts.append(f'<circle cx="{x(hours):.1f}" cy="{y(usd):.1f}" r="2" fill="{_OTHER}"/>')
    if front.deadline_h is not None:
        at = x(front.deadline_h)
        parts.append(_line(at, at, _TOP, _BOTTOM, _LIMIT, dashed=True))
        parts.append(f'<text x="{at:.1f}" y="{_TOP - 6:.0f}" text-anchor="middle" fill="{_LIMIT}">deadline</text>')
    if front.budget_usd is not None:
        parts.append(_line(_LEFT, _RIGHT, y(front.budget_usd), y(front.budget_usd), _LIMIT, dashed=True))
        parts.append(f'<text x="{_RIGHT + 4:.0f}" y="{y(front.budget_usd) + 4:.1f}" fill="{_LIMIT}">budget</text>')
    for index, (letter, point) in enumerate(named(front)):
        at, height, row = x(point.hours), y(point.usd), _TOP + 17 * index
        what, *figures = _cells(point)
        colour, tip = COLOURS[0] if point.inside else _LIMIT, ", ".join([what, *figures])
        parts.append(
            f"<g><title>{escape(tip)}</title>"
            f'<circle cx="{at:.1f}" cy="{height:.1f}" r="7" fill="{colour}"/>'
            f'<text x="{at:.1f}" y="{height + 3.5:.1f}" text-anchor="middle" fill="white" font-size="10">{letter}</text></g>'
            f'<text x="{_RIGHT + 56:.0f}" y="{row:.0f}" font-weight="bold" fill="{colour}">{letter}</text>'
            f'<text x="{_RIGHT + 72:.0f}" y="{row:.0f}">{escape(shortened(what, 40))}</text>'
        )
        for right, figure in zip((346, 408, 470), figures, strict=True):
            parts.append(f'<text x="{_RIGHT + right:.0f}" y="{row:.0f}" text-anchor="end">{escape(figure)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _share(value: float, ends: tuple[float, float]) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _times(ends: _Ends) -> list[int]:
    """The marks of the time axis, in seconds."""
    return [time_s for time_s in _TIMES_S if ends.hours[0] <= time_s / 3600 <= ends.hours[1]]


def _line(x1: float, x2: float, y1: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def draw(front: ParetoFront) -> Figure:
    """The same as a matplotlib Figure. Raises MissingDependencyError without matplotlib."""
    ends, figure = _Ends.of(front), empty_figure(13, 7, FLAG)
    chart = figure.add_axes((0.07, 0.09, 0.47, 0.79))
    chart.set_xscale("log")
    chart.set_yscale("log")
    chart.set_xlim(*ends.hours)
    chart.set_ylim(*ends.usd)
    others = [(hours, ends.cost(usd)) for hours, usd in front.others if ends.holds(hours, usd)]
    chart.scatter([hours for hours, _ in others], [usd for _, usd in others], s=8, color=_OTHER)
    if front.deadline_h is not None:
        chart.axvline(front.deadline_h, color=_LIMIT, linestyle="--")
    if front.budget_usd is not None:
        chart.axhline(front.budget_usd, color=_LIMIT, linestyle="--")
    chart.set_xticks([time_s / 3600 for time_s in _times(ends)], [format_duration(time_s) for time_s in _times(ends)])
    chart.set_xticks([], minor=True)
    money = decades(*ends.usd)
    chart.set_yticks(money, [format_usd(value) for value in money])
    chart.set_yticks([], minor=True)
    plain(chart)
    figure.text(0.07, 0.95, title(front), fontsize=14, fontweight="bold", va="center")
    figure.text(0.07, 0.915, "; ".join(["letters: no plan is better in all three", *_limits(front)]), fontsize=9)
    for index, (letter, point) in enumerate(named(front)):
        colour, row = COLOURS[0] if point.inside else _LIMIT, 0.87 - 0.033 * index
        chart.scatter([point.hours], [ends.cost(point.usd)], s=130, color=colour, zorder=3)
        chart.annotate(
            letter, (point.hours, ends.cost(point.usd)), ha="center", va="center", color="white", fontsize=8, zorder=4
        )
        what, *figures = _cells(point)
        figure.text(0.56, row, letter, fontsize=9, fontweight="bold", color=colour)
        figure.text(0.575, row, shortened(what, 44), fontsize=8)
        for right, figure_words in zip((0.87, 0.93, 0.99), figures, strict=True):
            figure.text(right, row, figure_words, fontsize=8, ha="right")
    return figure


def text_picture(front: ParetoFront) -> str:
    """Money over time in characters, the limits as lines, and the list of what the letters are."""
    ends = _Ends.of(front)
    grid = LogGrid(_COLUMNS, _ROWS, ends.hours, ends.usd)
    for hours, usd in front.others:
        if ends.holds(hours, usd):
            grid.put(hours, ends.cost(usd), "·")
    for step in range(_COLUMNS):
        across = ends.hours[0] * (ends.hours[1] / ends.hours[0]) ** (step / (_COLUMNS - 1))
        up = ends.usd[0] * (ends.usd[1] / ends.usd[0]) ** (step / (_COLUMNS - 1))
        if front.budget_usd is not None:
            grid.put(across, ends.cost(front.budget_usd), "-")
        if front.deadline_h is not None:
            grid.put(front.deadline_h, up, "¦")
    letters = named(front)
    for letter, point in reversed(letters):
        grid.put(point.hours, ends.cost(point.usd), letter)
    labels = (format_usd(ends.usd[1]), format_usd(ends.usd[0]))
    margin = max(map(len, labels)) + 1
    lines = [title(front)]
    for index, row in enumerate(grid.lines()):
        label = labels[0] if index == 0 else labels[1] if index == _ROWS - 1 else ""
        lines.append(f"{label:>{margin}}│{row}")
    begins, ends_in = (format_duration(hours * 3600) for hours in ends.hours)
    lines += [" " * margin + "└" + "─" * _COLUMNS, " " * (margin + 1) + begins + ends_in.rjust(_COLUMNS - len(begins)), ""]
    for letter, point in letters:
        what, time, money, energy = _cells(point)
        outside = "" if point.inside else "  outside"
        lines.append(f"  {letter} {shortened(what, 50):<50}{time:>10}{money:>10}{energy:>10}{outside}")
    legend = ["letters: no plan is better in time, money and energy", "·: the other plans", *_limits(front)]
    return "\n".join([*lines, "", "; ".join(legend)])
