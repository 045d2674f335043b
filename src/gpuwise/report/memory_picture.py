"""A Timeline as a picture: PNG or SVG through matplotlib, or text for a terminal."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuwise.cost.memory.timeline import Timeline
from gpuwise.report.parts import strategy_words
from gpuwise.report.picture import check_picture, empty_figure, save_figure, shortened
from gpuwise.units import format_bytes, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAG = "--memory-plot"
# What is stacked from the bottom up: what stays first, what comes and goes on top. Colour, and glyph in text.
LOOK = {
    "parameter": ("#33508a", "█"),
    "optimizer_state": ("#7f9cd0", "▓"),
    "gradient": ("#e3a13c", "▒"),
    "communication_buffer": ("#8d6cab", "="),
    "workspace": ("#9a9a9a", "-"),
    "input": ("#5f5f5f", "·"),
    "activation": ("#5aa377", "░"),
    "temporary": ("#cf5a56", "+"),
}
_PHASE_COLOURS = {"forward": "#eef3ee", "backward": "#f7f1e6", "optimizer": "#eaeef7"}
_COLUMNS = 700
_GIB = 2**30
# A capacity further above the peak than this would flatten the picture: it is named, not drawn.
_DRAW_LIMIT_UP_TO = 1.6


def save_picture(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Writes the picture as .png or .svg; the file is whole or is not there.

    Raises InputError for another ending or a folder that cannot be written, MissingDependencyError without matplotlib.
    """
    target = check_picture(path, FLAG)
    return save_figure(draw(timeline), target)


def draw(timeline: Timeline) -> Figure:
    """The picture as a matplotlib Figure: stacked categories, phases, the peak and the tensors that make it."""
    figure = empty_figure(13, 6.2, FLAG)
    chart = figure.add_axes((0.06, 0.1, 0.595, 0.78))
    unit_s, unit = _time_unit(float(timeline.start_s[-1]))
    _draw_stack(chart, timeline, unit_s)
    _draw_lines(chart, timeline, unit_s)
    _draw_phases(chart, timeline, unit_s)
    again = "; white: computed again" if timeline.recomputes else ""
    chart.set_xlabel(f"time in the step, {unit} of work on the device{again}")
    figure.text(0.06, 0.955, f"{timeline.job} on {timeline.device}", fontsize=14, fontweight="bold", va="center")
    figure.text(0.06, 0.915, strategy_words(timeline.strategy), fontsize=10, color="#555555", va="center")
    _draw_side(figure, timeline)
    return figure


def _draw_stack(chart: Axes, timeline: Timeline, unit_s: float) -> None:
    sampled = timeline.sampled(_COLUMNS) / _GIB
    x = np.repeat(np.linspace(0, timeline.start_s[-1] / unit_s, _COLUMNS + 1), 2)[1:-1]
    below = np.zeros(2 * _COLUMNS)
    for name in _stacked(timeline):
        above = below + np.repeat(sampled[timeline.categories.index(name)], 2)
        chart.fill_between(x, below, above, color=LOOK[name][0], linewidth=0, label=name.replace("_", " "))
        below = above
    chart.set_xlim(0, x[-1])
    chart.set_ylabel("GiB")
    chart.spines[["top", "right"]].set_visible(False)
    chart.grid(axis="y", color="#00000018", linewidth=0.7)
    chart.tick_params(axis="x", length=0)


def _draw_lines(chart: Axes, timeline: Timeline, unit_s: float) -> None:
    """The peak, what the allocator reserves, and what the device has. Their names stand away from the peak's."""
    memory, whole = timeline.memory, float(timeline.start_s[-1]) / unit_s
    peak, reserved = memory.peak_allocated_bytes / _GIB, memory.peak_reserved_bytes / _GIB
    at, top = timeline.peak_s / unit_s, max(peak, reserved)
    early = at < whole / 2
    right = timeline.spans[-1][1] / unit_s / whole if timeline.spans[-1][0] == "optimizer" else 1.0  # keeps its name free
    lines = [(reserved, "reserved", "#444444", "--")] if reserved > peak else []
    if memory.capacity_bytes is not None and memory.capacity_bytes / _GIB <= _DRAW_LIMIT_UP_TO * top:
        lines.append((memory.capacity_bytes / _GIB, "device", "#b00020", "-"))
    for height, name, colour, style in lines:
        chart.axhline(height, color=colour, linewidth=1.2, linestyle=style)
        chart.annotate(
            f"{name} {format_bytes(height * _GIB)}",
            (right if early else 0, height),
            xytext=(-4 if early else 4, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right" if early else "left",
            va="bottom",
            fontsize=9,
            color=colour,
        )
        top = max(top, height)
    chart.vlines(at, 0, peak, color="black", linewidth=1)
    chart.plot([at], [peak], marker="v", color="black", markersize=6, clip_on=False)
    chart.annotate(
        f"peak {format_bytes(peak * _GIB)}",
        (at, peak),
        xytext=(6 if early else -6, 6),
        textcoords="offset points",
        ha="left" if early else "right",
        va="bottom",
        fontsize=10,
        fontweight="bold",
    )
    chart.set_ylim(0, top * 1.18)


def _draw_phases(chart: Axes, timeline: Timeline, unit_s: float) -> None:
    """Phases as the background, named at the top; what backward computes again as marks along the bottom."""
    whole = float(timeline.start_s[-1])
    for phase, begin, end in timeline.spans:
        chart.axvspan(begin / unit_s, end / unit_s, color=_PHASE_COLOURS[phase], zorder=-1, linewidth=0)
        if begin > 0:
            chart.axvline(begin / unit_s, color="#00000055", linewidth=0.8, linestyle=":")
        narrow = end - begin < 0.09 * whole
        if end - begin > 0.015 * whole:
            chart.annotate(
                phase,
                ((begin + end) / 2 / unit_s, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -4),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=9,
                color="#666666",
                rotation=90 if narrow else 0,
            )
    for begin, end in timeline.recomputes:
        chart.axvspan(begin / unit_s, end / unit_s, ymax=0.012, color="white", linewidth=0)


def _draw_side(figure: Figure, timeline: Timeline) -> None:
    """Beside the chart: the categories at the peak, and the tensors that make it."""
    from matplotlib.patches import Rectangle

    left, y = 0.675, 0.88
    panel = figure.add_axes((0, 0, 1, 1), zorder=-1)
    panel.set_axis_off()

    def line(text: str, size_bytes: int | None, colour: str | None, *, step: float = 0.031, **style: Any) -> None:
        nonlocal y
        if colour:
            panel.add_patch(Rectangle((left, y - 0.008), 0.008, 0.016, color=colour, transform=figure.transFigure))
        figure.text(left + (0.014 if colour else 0), y, text, va="center", **{"fontsize": 9, **style})
        if size_bytes is not None:
            figure.text(0.985, y, format_bytes(size_bytes), va="center", ha="right", **{"fontsize": 9, **style})
        y -= step

    line("at the peak", timeline.memory.peak_allocated_bytes, None, fontweight="bold", fontsize=10)
    at_peak = timeline.memory.by_category
    for name in sorted(timeline.categories, key=lambda name: -at_peak.get(name, 0)):
        line(name.replace("_", " "), at_peak.get(name, 0), LOOK[name][0])
    y -= 0.02
    line("the ten that hold most", None, None, fontweight="bold", fontsize=10)
    for tensors in timeline.peak.tensors:
        line(shortened(tensors.words, 46), tensors.total_bytes, LOOK[tensors.category][0])
    y -= 0.02
    for words in wrap(timeline.peak.sentence, 58):
        line(words, None, None, step=0.027, color="#444444")


def text_picture(timeline: Timeline, *, width: int = 72, height: int = 16) -> str:
    """The same in characters, at most `width` a line."""
    chart = width - _MARGIN
    sampled = timeline.sampled(chart)
    total = sampled.sum(axis=0)
    top = timeline.memory.peak_allocated_bytes
    names = _stacked(timeline)
    stack = np.cumsum([sampled[timeline.categories.index(name)] for name in names], axis=0)
    peak = int(total.argmax())
    lines = [
        shortened(f"{timeline.job} on {timeline.device}: {strategy_words(timeline.strategy)}", width),
        " " * (_MARGIN + peak) + "v peak" if peak < chart - 6 else " " * (_MARGIN + peak - 5) + "peak v",
    ]
    for row in range(height, 0, -1):
        middle = top * (row - 0.5) / height
        cells = [_glyph(names, stack[:, column], middle) for column in range(chart)]
        label = format_bytes(top * row / height) if row in (height, height // 2) else ""
        lines.append(f"{label:>{_MARGIN - 2}} |" + "".join(cells).rstrip())
    lines += [f"{'0':>{_MARGIN - 2}} +" + "-" * chart, " " * _MARGIN + _phase_ruler(timeline, chart).rstrip()]
    sentence = f"at the peak: {format_bytes(top)} allocated, {format_bytes(timeline.memory.peak_reserved_bytes)} reserved"
    lines += ["", *wrap(sentence + _of_device(timeline), width)]
    at_peak = timeline.memory.by_category
    for name in reversed(names):
        if at_peak.get(name, 0):
            lines.append(
                f"  {LOOK[name][1] * 2} {name.replace('_', ' '):<22}{format_bytes(at_peak[name]):>10}"
                f"{100 * at_peak[name] / top:>6.1f} %"
            )
    lines += ["", "the ten that hold most"]
    for tensors in timeline.peak.tensors:
        words = shortened(tensors.words, width - 16)
        lines.append(f"  {LOOK[tensors.category][1] * 2} {words:<{width - 16}} {format_bytes(tensors.total_bytes):>9}")
    return "\n".join([*lines, "", *wrap(timeline.peak.sentence, width), *wrap(timeline.peak.advice, width)])


_MARGIN = 12  # characters of the axis and its labels


def _glyph(names: list[str], stack: np.ndarray, height_bytes: float) -> str:
    """What stands at a height of one column."""
    index = int(np.searchsorted(stack, height_bytes, side="right"))
    return LOOK[names[index]][1] if index < len(names) else " "


def _phase_ruler(timeline: Timeline, chart: int) -> str:
    """'|forward      |backward          |optimizer'"""
    ruler = [" "] * chart
    whole = float(timeline.start_s[-1]) or 1.0
    for phase, begin, end in timeline.spans:
        a, b = round(chart * begin / whole), round(chart * end / whole)
        word = f"|{phase}"
        ruler[a:b] = list(word[: b - a].ljust(b - a))
    return "".join(ruler)


def _of_device(timeline: Timeline) -> str:
    capacity = timeline.memory.capacity_bytes
    return "" if capacity is None else f", device {format_bytes(capacity)}"


def _stacked(timeline: Timeline) -> list[str]:
    return [name for name in LOOK if name in timeline.categories]


def _time_unit(whole_s: float) -> tuple[float, str]:
    unit = format_duration(whole_s).rpartition(" ")[2]
    return {"µs": (1e-6, "µs"), "ms": (1e-3, "ms"), "min": (60.0, "min")}.get(unit, (1.0, "s"))
