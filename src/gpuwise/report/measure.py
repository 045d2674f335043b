"""A MachineMeasurement as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.detected import detected_words, joined_words
from gpuwise.report.parts import UNKNOWN, columns, grid, heading, indented, notes, number, percent
from gpuwise.report.plain import part
from gpuwise.units import format_bytes, format_duration, format_flops

if TYPE_CHECKING:
    from gpuwise.results.measurement import MachineMeasurement, MeasuredRow

# Of gpuwise.results.measurement.GROUPS, in the order they are shown.
GROUP_WORDS = {
    "memory": "memory",
    "gemm": "matrix products",
    "conv": "convolutions",
    "attention": "attention",
    "elementwise": "elementwise",
    "reduction": "reductions",
    "norm": "normalisation",
    "optimizer": "optimizer steps",
    "other": "other operations",
    "step": "whole steps",
    "copy": "copies to and from the host",
    "collective": "collectives",
}
_STREAMING = ("memory", "elementwise", "reduction", "norm", "optimizer")  # bound by bytes, whatever they compute
_BEST_OF = ("copy", "collective")  # groups of which the best figure of each benchmark stands above the rows


def measure_report(result: MachineMeasurement) -> Group:
    """What the machine is and reaches beside its datasheet, each microbenchmark, what disturbed them, and what it is for."""
    parts: list[RenderableType] = [_title(result), Text(""), grid(_machine(result))]
    if result.peaks:
        parts += [heading("peaks of arithmetic"), _peaks(result)]
    if result.memory:
        parts += [heading("memory"), _memory(result)]
    if result.ridges:
        ridges = "; ".join(f"{dtype}: {number(ridge)} operations a byte" for dtype, ridge in result.ridges.items())
        sentence = f"{ridges}. From there on arithmetic bounds a kernel, below it the memory."
        parts += [heading("ridge points"), indented(sentence)]
    if others := _others(result):
        parts += [heading("beside kernels"), grid(others)]
    if result.rows:
        parts += [heading("microbenchmarks"), _rows(result.rows), Text(""), indented(_below(result.rows))]
    else:
        parts += [Text(""), indented("No microbenchmark was finished.")]
    early = () if result.complete else ("ended early: what was not measured until then is missing",)
    parts += notes("notes", [*early, *result.notes])
    parts += [heading("forecasts"), indented(_forecasts(result))]
    return Group(*parts)


def achieved(row: MeasuredRow) -> str:
    """What a benchmark reached in the unit of its kind: operations or bytes a second; '-' where only time counts."""
    if _is_arithmetic(row):
        return f"{format_flops(rate_of(row))}/s"
    return bandwidth(rate_of(row)) if row.bytes else UNKNOWN


def rate_of(row: MeasuredRow) -> float:
    """That as a number; 0 where only time counts."""
    return row.flops_per_s if _is_arithmetic(row) else row.bytes_per_s


def _is_arithmetic(row: MeasuredRow) -> bool:
    return row.flops > 0 and row.group not in _STREAMING


def bandwidth(bytes_per_s: float) -> str:
    """'38.1 GB/s': GB are 10^9 bytes, as datasheets have them."""
    return f"{number(bytes_per_s / 1e9)} GB/s"


def in_order(rows: Iterable[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """By group in the order of GROUP_WORDS; those it does not have come last."""
    groups: dict[str, list[MeasuredRow]] = {name: [] for name in GROUP_WORDS}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return {name: of_group for name, of_group in groups.items() if of_group}


def row_words(row: MeasuredRow) -> str:
    """'product 1 x 4096 x 64', 'triad 64 KiB', 'images workers=2': name and sizes of a benchmark."""
    if list(row.sizes) == ["m", "k", "n"]:
        return f"{row.name} {' x '.join(map(str, row.sizes.values()))}"
    sizes = (format_bytes(value) if name.endswith("bytes") else f"{name}={value}" for name, value in row.sizes.items())
    return " ".join([row.name, *sizes])


def _title(result: MachineMeasurement) -> Text:
    how = "quick sweep" if result.quick else "full sweep"
    early = "" if result.complete else ", ended early"
    summary = f": {how}{early}, {len(result.rows):,} microbenchmarks in {format_duration(result.seconds)}"
    return Text.assemble((result.machine, "bold"), summary)


def _machine(result: MachineMeasurement) -> list[tuple[str, str]]:
    """A summary of the detected hardware, and the chip it counts as."""
    by = f"method {result.method}" + (f", PyTorch {result.torch_version}" if result.torch_version else "")
    joined = joined_words(part(result.detected, "interconnect"))
    return [
        *detected_words(result.detected),
        *([("joined by", joined)] if joined else []),
        ("counts as", f"{result.chip}, device {result.device} of PyTorch"),
        ("measured", f"{result.taken} by {by}"),
    ]


def _peaks(result: MachineMeasurement) -> RenderableType:
    rows = [
        (
            peak.dtype,
            UNKNOWN if peak.datasheet is None else f"{format_flops(peak.datasheet)}/s",
            f"{format_flops(peak.measured)}/s",
            _share(peak.measured, peak.datasheet),
            _plus_minus(peak.spread),
            peak.shape or UNKNOWN,
        )
        for peak in result.peaks
    ]
    return columns(
        ("dtype", "datasheet", "measured", "share", "spread", "reached by"),
        rows,
        right=("datasheet", "measured", "share", "spread"),
        wide="reached by",
    )


def _memory(result: MachineMeasurement) -> RenderableType:
    rows = [
        (
            level.name,
            UNKNOWN if level.size_bytes is None else format_bytes(level.size_bytes),
            UNKNOWN if level.datasheet is None else bandwidth(level.datasheet),
            bandwidth(level.measured),
            _share(level.measured, level.datasheet),
            _plus_minus(level.spread),
        )
        for level in result.memory
    ]
    return columns(
        ("level", "size", "datasheet", "measured", "share", "spread"),
        rows,
        right=("size", "datasheet", "measured", "share", "spread"),
    )


def _share(measured: float, datasheet: float | None) -> str:
    return UNKNOWN if datasheet is None else percent(measured / datasheet)


def _plus_minus(spread: float) -> str:
    return f"± {100 * spread:.1f} %"


def _others(result: MachineMeasurement) -> list[tuple[str, str]]:
    """The best that each benchmark of copies and collectives reached over its sizes."""
    lines = []
    groups = in_order(result.rows)
    for group in _BEST_OF:
        best: dict[str, MeasuredRow] = {}
        for row in groups.get(group, ()):
            best[row.name] = max(row, best.get(row.name, row), key=rate_of)
        if best:
            lines.append((GROUP_WORDS[group], "; ".join(f"{name}: {achieved(row)}" for name, row in best.items())))
    return lines


def _rows(rows: Sequence[MeasuredRow]) -> RenderableType:
    cells = []
    for group, of_group in in_order(rows).items():
        cells.append((GROUP_WORDS.get(group, group), "", "", ""))
        cells += [(f"  {row_words(row)}", row.dtype or UNKNOWN, _time(row), achieved(row)) for row in of_group]
    heads = ("benchmark", "dtype", "median (10 to 90 %)", "achieved")
    return columns(heads, cells, right=heads[2:], wide=heads[0])


def _time(row: MeasuredRow) -> str:
    """'5.71 µs (5.59 to 5.82)', and a question mark where the result was not checked."""
    words = format_duration(row.timing.median_s)
    scale = _UNITS_S[words.rpartition(" ")[2]]
    span = f"({number(row.timing.low_s / scale)} to {number(row.timing.high_s / scale)})"
    return f"{words} {span}{'' if row.verified else '?'}"


_UNITS_S = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}


def _below(rows: Sequence[MeasuredRow]) -> str:
    """The spread of the whole, half the distance of the 10th and the 90th percentile; and how much was checked."""
    worst, unchecked = max(rows, key=lambda row: row.timing.spread), sum(not row.verified for row in rows)
    checked = "all" if not unchecked else f"{len(rows) - unchecked:,} of {len(rows):,}"
    return (
        f"Spread: {_plus_minus(median(row.timing.spread for row in rows))} in the median benchmark, "
        f"{_plus_minus(worst.timing.spread)} in the worst ({row_words(worst)}). Results checked against another "
        f"computation: {checked}{'; those marked ? were not' if unchecked else ''}."
    )


def _forecasts(result: MachineMeasurement) -> str:
    if not result.calibration:
        return "No calibration file was written: forecasts on `here` are as they were before."
    sentence = f"`gpuwise forecast JOB --on here` uses {result.calibration} from now on."
    if result.error is not None:
        sentence += f" Held against benchmarks that its fit did not see, it is off by {percent(result.error)} in the median."
    return sentence
