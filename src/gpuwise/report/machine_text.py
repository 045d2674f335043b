"""A MachineMeasurement as a roofline in characters; and what of one has a place under its roofs, for machine_picture too."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING

from gpuwise.report.measure import GROUP_WORDS, bandwidth, in_order
from gpuwise.report.parts import number, percent
from gpuwise.report.picture import LogGrid, shortened
from gpuwise.units import format_flops

if TYPE_CHECKING:
    from gpuwise.results.measurement import MachineMeasurement, MeasuredRow

# By group; copies and the rest are bound by something else than a roof of the device.
LETTERS = {
    "memory": "m",
    "gemm": "g",
    "conv": "c",
    "attention": "a",
    "elementwise": "e",
    "reduction": "r",
    "norm": "n",
    "optimizer": "o",
    "other": "x",
    "step": "s",
}
_DECADES = 5.5  # below the highest roof: what is slower is launch overhead and stands on the lower edge
_MARGIN = 14  # characters of the axis and its labels
_NAMES = 10  # and of the names of two roofs


def drawn(result: MachineMeasurement) -> list[MeasuredRow]:
    """By group."""
    return [row for rows in in_order(result.rows).values() for row in rows if row.group in LETTERS and row.bytes]


def has_intensity(row: MeasuredRow) -> bool:
    """Whether operations a byte place it; streams over memory are there for the bytes, though some of them add and scale."""
    return row.flops > 0 and row.group != "memory"


def ranges(result: MachineMeasurement) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of operations a byte, with room for slants on the left, and of operations a second."""
    under = [row for row in drawn(result) if has_intensity(row)]
    across = [*(row.flops / row.bytes for row in under), *result.ridges.values()] or [1.0, 100.0]
    low, high = min(min(across) / 2, max(across) / 300), 3 * max(across)
    slowest = result.memory[-1].measured * low if result.memory else None
    up = [
        *(row.flops_per_s for row in under),
        *(peak.measured for peak in result.peaks),
        *(peak.datasheet for peak in result.peaks if peak.datasheet),
    ] or [1e9, 1e12]
    top = 1.6 * max(up)
    bottom = min([value for value in (*up, slowest) if value is not None]) / 1.6
    return (low, high), (max(bottom, top / 10**_DECADES), top)


def text_picture(result: MachineMeasurement, *, width: int = 72, height: int = 18) -> str:
    """The same in characters, at most `width` a line: roofs as measured, ridge points as +, benchmarks as letters."""
    if not (result.peaks and result.memory):
        return "\n".join(wrap(f"{result.machine}: too little was measured for a roofline.", width))
    (low, high), (bottom, top) = ranges(result)
    chart = width - _MARGIN - _NAMES
    grid = LogGrid(chart, height, (low, high), (bottom, top))
    names: dict[int, str] = {}
    for peak in result.peaks:
        names[grid.row(peak.measured)] = f"{names.get(grid.row(peak.measured), '')} {peak.dtype}"
    x = [low * (high / low) ** (step / (2 * chart)) for step in range(2 * chart + 1)]
    steepest, highest = max(level.measured for level in result.memory), max(peak.measured for peak in result.peaks)
    for level in result.memory:
        _along(grid, ((at, at * level.measured) for at in x if at * level.measured < highest), "/")
    for peak in reversed(result.peaks):
        _along(grid, ((at, peak.measured) for at in x if at * steepest >= peak.measured), "_")
    for row in reversed(drawn(result)):
        if has_intensity(row):
            grid.put(row.flops / row.bytes, max(row.flops_per_s, bottom), LETTERS[row.group])
    for dtype, ridge in result.ridges.items():
        grid.put(ridge, next(peak.measured for peak in result.peaks if peak.dtype == dtype), "+")
    lines = [shortened(result.machine, width), ""]
    for line, cells in enumerate(grid.lines()):
        label = format_flops(top if line == 0 else bottom) if line in (0, height - 1) else ""
        lines.append(f"{label:>{_MARGIN - 2}} |{cells:<{chart}}{names.get(line, '')[:_NAMES]}".rstrip())
    ends = f"{number(low) + ' operations a byte':<{chart - 12}}{number(high):>12}"
    lines += [f"{'a second':>{_MARGIN - 2}} +" + "-" * chart, " " * _MARGIN + ends, ""]
    shown = in_order(row for row in drawn(result) if has_intensity(row))
    letters = "; ".join([*(f"{LETTERS[group]} {GROUP_WORDS[group]}" for group in shown), "+ ridge point"])
    roofs = [part for line in _roofs(result) for part in wrap(line, width, initial_indent="  ", subsequent_indent="    ")]
    return "\n".join([*lines, *wrap(letters, width), "", *roofs])


def _along(grid: LogGrid, points: Iterable[tuple[float, float]], glyph: str) -> None:
    for across, up in points:
        grid.put(across, up, glyph)


def _roofs(result: MachineMeasurement) -> list[str]:
    """What the lines are."""
    lines = [
        f"{peak.dtype}: {format_flops(peak.measured)}/s{_share(peak.measured, peak.datasheet)}; ridge point at "
        f"{number(result.ridges[peak.dtype])} operations a byte"
        for peak in result.peaks
    ]
    return lines + [
        f"{level.name}: {bandwidth(level.measured)}{_share(level.measured, level.datasheet)}" for level in result.memory
    ]


def _share(measured: float, datasheet: float | None) -> str:
    return "" if datasheet is None else f", {percent(measured / datasheet)} of the datasheet"
