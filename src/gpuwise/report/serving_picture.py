"""A ServingForecast as a picture: dollars a million tokens over the rate. SVG without further packages, PNG through matplotlib,
or text for a terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.errors import InputError
from gpuwise.report.picture import COLOURS, LogGrid, apart, check_picture, empty_figure, plain, save_figure, save_text
from gpuwise.report.serving_choice import rate_words, small_usd
from gpuwise.report.svg_chart import decades
from gpuwise.serving.fleets import HOURS_A_MONTH, Fleet
from gpuwise.serving.forecast import ServingForecast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAG = "--plot"
_WIDTH, _HEIGHT = 960.0, 540.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 760.0, 84.0, 470.0  # of the chart; names stand right of it
_COLUMNS, _ROWS = 66, 18
_MOST = 8  # lines
_LOWEST, _HIGHEST = 100.0, 10.0  # the ends of the rates under and over the user's
_API = "#222222"
_LEGEND = "steps: one more instance; strip: the cheapest at each rate; dashed: the rate that was named"


@dataclass(frozen=True)
class PriceLine:
    """One kind of instance.

    Attributes:
        device: of an instance.
        points: rates, and dollars a million tokens written.
    """

    device: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class PriceChart:
    """What the picture shows.

    Attributes:
        lines: of kinds of instance, those that are the cheapest somewhere first.
        cheapest: from which rate on to which, and the device.
        rates, usd: the ends of both axes.
        api_usd: dollars a million tokens written of the user's API, prompts included; None without one.
    """

    title: str
    rate_per_s: float
    lines: Sequence[PriceLine]
    cheapest: Sequence[tuple[float, float, str]]
    rates: tuple[float, float]
    usd: tuple[float, float]
    api_usd: float | None

    def colour(self, device: str) -> str:
        """Of a device's line."""
        return COLOURS[[line.device for line in self.lines].index(device) % len(COLOURS)]


def chart_of(forecast: ServingForecast) -> PriceChart:
    """The chart of a forecast. Raises InputError where no kind of instance has a price."""
    written = next(
        (
            1e6 * row.usd_per_request / row.usd_per_million_output
            for row in forecast.rows
            if row.usd_per_request and row.usd_per_million_output
        ),
        None,
    )
    if "clients" in forecast.arrivals:
        raise InputError("users who wait for their answers have no rate to draw.", ["--rate in place of --concurrency"])
    if written is None or not forecast.fleets:
        raise InputError(
            "no device that serves this has a price to draw.", ["leave out --plot", "devices with offers: `gpuwise offers`"]
        )
    rates = forecast.rate_per_s / _LOWEST, forecast.rate_per_s * _HIGHEST
    cheapest = [
        (max(each.above_per_s, rates[0]), min(each.up_to_per_s, rates[1]), each.device)
        for each in forecast.by_rate
        if each.up_to_per_s > rates[0]
    ]
    by_name = {fleet.device: fleet for fleet in forecast.fleets}
    shown = dict.fromkeys(
        [*(device for _, _, device in cheapest), *(row.device for row in forecast.rows if row.device in by_name)]
    )
    names = list(shown)[:_MOST]
    lines = [PriceLine(name, _points(by_name[name], rates, written)) for name in names]
    api_usd = None
    if forecast.api_usd_per_month is not None:
        api_usd = 1e6 * forecast.api_usd_per_month / (forecast.rate_per_s * HOURS_A_MONTH * 3600) / written
    values = [usd for line in lines for _, usd in line.points] + ([] if api_usd is None else [api_usd])
    return PriceChart(
        f"{forecast.job} in {forecast.weights}: dollars a million tokens written, by rate",
        forecast.rate_per_s,
        lines,
        [each for each in cheapest if each[2] in names],
        rates,
        (min(values) / 1.2, max(values) * 1.2),
        api_usd,
    )


def _points(fleet: Fleet, rates: tuple[float, float], written: float) -> list[tuple[float, float]]:
    """Both sides of each step of the price, and points in between."""
    steps = fleet.steps(rates[1])[:-1]
    at = np.unique(np.concatenate([np.geomspace(*rates, 120), steps, steps * (1 + 1e-6)]))
    at = at[(at >= rates[0]) & (at <= rates[1])]
    usd = fleet.usd_at_each(at) / 3600 / at * 1e6 / written
    return list(zip(at.tolist(), usd.tolist(), strict=True))


def save_picture(forecast: ServingForecast, path: str | os.PathLike[str]) -> Path:
    """Writes the picture as .svg or .png; the file is whole or is not there.

    Raises InputError for another ending, a folder that cannot be written or a forecast without prices, MissingDependencyError
    for a .png without matplotlib.
    """
    target, chart = check_picture(path, FLAG), chart_of(forecast)
    if target.suffix.lower() == ".svg":
        return save_text(svg(chart), target)
    return save_figure(draw(chart), target)


def svg(chart: PriceChart) -> str:
    """A line for each kind of instance, both axes logarithmic; the strip below has the cheapest at each rate."""

    def x(rate: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * _share(rate, chart.rates)

    def y(usd: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * _share(usd, chart.usd)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="#444444">',
        f'<rect width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" fill="white"/>',
        f'<text x="20" y="30" font-size="15" font-weight="bold" fill="black">{escape(chart.title)}</text>',
        f'<text x="20" y="50">{_LEGEND}</text>',
    ]
    for rate in decades(*chart.rates):
        parts.append(_line(x(rate), x(rate), _TOP, _BOTTOM, "#00000018"))
        parts.append(f'<text x="{x(rate):.1f}" y="{_BOTTOM + 34:.0f}" text-anchor="middle">{rate_words(rate)}</text>')
    for usd in decades(*chart.usd):
        parts.append(_line(_LEFT, _RIGHT, y(usd), y(usd), "#00000018"))
        parts.append(f'<text x="{_LEFT - 8:.0f}" y="{y(usd) + 4:.1f}" text-anchor="end">{small_usd(usd)}</text>')
    parts.append(_line(x(chart.rate_per_s), x(chart.rate_per_s), _TOP, _BOTTOM, "#888888", dashed=True))
    if chart.api_usd is not None:
        parts.append(_line(_LEFT, _RIGHT, y(chart.api_usd), y(chart.api_usd), _API, dashed=True))
        parts.append(f'<text x="{_LEFT + 6:.0f}" y="{y(chart.api_usd) - 5:.1f}" fill="{_API}">API</text>')
    ends = apart([y(line.points[-1][1]) for line in chart.lines], 15, _TOP, _BOTTOM)
    for line, end in zip(chart.lines, ends, strict=True):
        colour = chart.colour(line.device)
        corners = " ".join(f"{x(rate):.1f},{y(usd):.1f}" for rate, usd in line.points)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<text x="{_RIGHT + 10:.0f}" y="{end + 4:.1f}" fill="{colour}">{escape(line.device)}</text>')
    for begin, stop, device in chart.cheapest:
        parts.append(
            f'<g><title>{escape(device)} from {rate_words(begin)} to {rate_words(stop)}</title><rect x="{x(begin):.1f}" '
            f'y="{_BOTTOM + 6:.0f}" width="{max(1.0, x(stop) - x(begin)):.1f}" height="10" fill="{chart.colour(device)}"/></g>'
        )
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{_BOTTOM + 56:.0f}" text-anchor="middle">requests</text>')
    return "\n".join([*parts, "</svg>\n"])


def _share(value: float, ends: tuple[float, float]) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _line(x1: float, x2: float, y1: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def draw(chart: PriceChart) -> Figure:
    """The same as a matplotlib Figure. Raises MissingDependencyError without matplotlib."""
    figure = empty_figure(11, 6.2, FLAG)
    axes = figure.add_axes((0.08, 0.13, 0.7, 0.73))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*chart.rates)
    axes.set_ylim(*chart.usd)
    for values, set_ticks, words in (
        (decades(*chart.rates), axes.set_xticks, rate_words),
        (decades(*chart.usd), axes.set_yticks, small_usd),
    ):
        set_ticks(values, [words(value) for value in values])
        set_ticks([], minor=True)
    axes.axvline(chart.rate_per_s, color="#888888", linestyle="--", linewidth=1)
    if chart.api_usd is not None:
        axes.axhline(chart.api_usd, color=_API, linestyle="--", linewidth=1)
        axes.annotate("API", (chart.rates[0], chart.api_usd), xytext=(4, 4), textcoords="offset points", fontsize=8)
    heights = [_share(line.points[-1][1], chart.usd) for line in chart.lines]
    for line, height in zip(chart.lines, apart(heights, 0.035, 0.0, 1.0), strict=True):
        colour = chart.colour(line.device)
        axes.plot(*zip(*line.points, strict=True), color=colour, linewidth=1.6)
        axes.text(1.01, height, line.device, color=colour, fontsize=9, va="center", transform=axes.transAxes)
    strip = figure.add_axes((0.08, 0.055, 0.7, 0.018))
    strip.set_xscale("log")
    strip.set_xlim(*chart.rates)
    strip.axis("off")
    for begin, stop, device in chart.cheapest:
        strip.axvspan(begin, stop, color=chart.colour(device), linewidth=0)
    plain(axes)
    figure.text(0.08, 0.94, chart.title, fontsize=13, fontweight="bold", va="center")
    figure.text(0.08, 0.895, _LEGEND, fontsize=9)
    figure.text(0.43, 0.02, "requests", fontsize=9, ha="center")
    return figure


def text_picture(forecast: ServingForecast) -> str:
    """Lines in letters, and what the letters are; capitals stand where a kind of instance is the cheapest."""
    chart = chart_of(forecast)
    grid = LogGrid(_COLUMNS, _ROWS, chart.rates, chart.usd)
    letters = "abcdefgh"
    for letter, line in reversed(list(zip(letters, chart.lines, strict=False))):
        for rate, usd in line.points:
            best = any(begin < rate <= stop and device == line.device for begin, stop, device in chart.cheapest)
            grid.put(rate, usd, letter.upper() if best else letter)
    labels = small_usd(chart.usd[1]), small_usd(chart.usd[0])
    margin = max(map(len, labels)) + 1
    lines = [chart.title]
    for index, row in enumerate(grid.lines()):
        label = labels[0] if index == 0 else labels[1] if index == _ROWS - 1 else ""
        lines.append(f"{label:>{margin}}│{row}")
    first, last = map(rate_words, chart.rates)
    lines += [" " * margin + "└" + "─" * _COLUMNS, " " * (margin + 1) + first + last.rjust(_COLUMNS - len(first)), ""]
    lines += [f"  {letter} {line.device}" for letter, line in zip(letters, chart.lines, strict=False)]
    return "\n".join([*lines, "", "capitals: the cheapest at that rate"])
