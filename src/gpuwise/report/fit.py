"""A FitResult as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.fit.types import FitResult, FitRow
from gpuwise.report.answer import answer_report
from gpuwise.report.parts import COUNTED, UNKNOWN, bars, columns, heading, notes, rate
from gpuwise.units import format_bytes, format_duration

_COLUMNS = ("technique", "devices", "frees", "time a sample", "memory", "largest micro-batch", "remark")
_NARROW = (("technique", "remark"), ("frees", "devices"), ("time a sample", "memory"), ("largest micro-batch",))
_RIGHT = ("devices", "frees", "time a sample", "memory", "largest micro-batch")
_CHANGES = "*"


def fit_report(result: FitResult) -> Group:
    """The largest micro-batch first, where memory peaks, then what each technique changes, the best trade first."""
    parts: list[RenderableType] = [Text(_headline(result), style="bold")]
    if result.forecast is not None:
        forecast = result.forecast
        each = f", {rate(forecast.throughput_per_device, forecast.throughput_unit)} a device" if forecast.count > 1 else ""
        parts.append(
            Text(
                f"there a step takes {format_duration(forecast.step_time_s.value)}, "
                f"{rate(forecast.throughput, forecast.throughput_unit)}{each}"
            )
        )
    memory = result.rows[0].memory
    if memory is not None:
        reserved = "" if memory.counted_only else f", {format_bytes(memory.peak_reserved_bytes)} reserved"
        parts += [
            heading(
                f"memory at micro-batch {result.micro_batch:,}: {format_bytes(memory.peak_allocated_bytes)} allocated{reserved}"
            ),
            bars(memory.by_category, format_bytes),
        ]
    parts += notes("where it peaks", [text for text in (result.peak.sentence, result.peak.advice) if text])
    frees = [row for row in result.rows[1:] if row.frees]
    first = result.rows[0]
    rows = [_row(row, first, capacity_known=result.capacity_bytes is not None) for row in (first, *frees)]
    parts += [
        heading("techniques, best trade first: what they free on each device, and the time they cost"),
        columns(_COLUMNS, rows, right=_RIGHT, wide="remark", narrow=_NARROW),
    ]
    parts += _legend(frees)
    parts += notes(
        "free nothing here",
        [f"{row.technique}: {row.note}" for row in result.rows[1:] if row.unavailable is None and not row.frees],
    )
    parts += notes("not looked at", _not_looked_at(result.rows))
    parts += _ways_out(result)
    parts += notes("assumed", result.assumptions)
    if isinstance(result.answer, FittingChange):
        parts += answer_report(result.answer.to_dict())
    elif result.answer is not None:
        parts += notes("nothing that gpuwise knows makes it fit here", result.answer.not_tried or ["a smaller model does"])
    return Group(*parts)


def _headline(result: FitResult) -> str:
    device = result.device + (f" x {result.count}" if result.count > 1 else "")
    if result.capacity_bytes is None:
        return f"{result.job} on {device}: its memory is not known"
    of = format_bytes(result.capacity_bytes)
    if result.fits:
        most = f"up to micro-batch {result.largest_micro_batch:,}"
        if result.largest_micro_batch == result.largest_tried:
            most = f"at micro-batch {result.largest_tried:,}, the largest tried"
        return f"{result.job} fits {device} ({of}) {most}"
    return f"{result.job} DOES NOT FIT {device} ({of}): not even one sample"


def _row(row: FitRow, first: FitRow, *, capacity_known: bool) -> list[str]:
    about = COUNTED if row is not first and row.memory is not None and row.memory.counted_only else ""
    memory = row.memory
    if about and first.memory is not None:
        memory = replace(first.memory, device_bytes=first.memory.device_bytes - (row.freed_bytes or 0))
    return [
        row.technique + (_CHANGES if row.changes_training else ""),
        str(row.devices),
        "" if not row.freed_bytes else format_bytes(row.freed_bytes),
        UNKNOWN if row.step_time_ratio is None else f"{row.step_time_ratio:.2f}x",
        UNKNOWN if memory is None else about + format_bytes(memory.device_bytes),
        UNKNOWN if not capacity_known else "none" if row.largest_micro_batch is None else f"{about}{row.largest_micro_batch:,}",
        row.note,
    ]


def _not_looked_at(rows: Sequence[FitRow]) -> list[str]:
    """One line a reason."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.unavailable is not None:
            by_reason.setdefault(row.unavailable, []).append(row.technique)
    return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _legend(rows: list[FitRow]) -> list[RenderableType]:
    lines = [f"{_CHANGES} changes what is trained, or how it converges"] if any(r.changes_training for r in rows) else []
    if any(row.memory is not None and row.memory.counted_only for row in rows):
        lines.append(
            f"{COUNTED} near: tensors are counted, fragments taken as in the first row; ask with its flag to replay it"
        )
    return [Text(line, style="dim") for line in lines]


def _ways_out(result: FitResult) -> list[RenderableType]:
    """The ways to make a job fit that does not."""
    parts: list[RenderableType] = []
    together = result.nearest_combination
    if not isinstance(result.answer, FittingChange) and together is not None and len(together.techniques) > 1:
        parts += notes("it would fit here with, together", [together.words])
    if result.nearest_techniques:
        parts += notes("it would fit with one of", result.nearest_techniques)
    if result.nearest_devices is not None:
        parts += notes("the fewest devices that hold it sharded", [f"{result.nearest_devices} of {result.device}"])
    if result.nearest_chips:
        parts += notes("it would fit as asked on", result.nearest_chips)
    return parts
