"""A FitResult as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.fit import FitResult, FitRow
from gpuwise.plan.pricing import MOST_MICRO_BATCH
from gpuwise.report.parts import UNKNOWN, bars, columns, heading, notes, rate
from gpuwise.units import format_bytes, format_duration

_COLUMNS = ("technique", "devices", "largest micro-batch", "memory", "frees", "time a sample", "remark")
_NARROW = (("technique", "remark"), ("largest micro-batch", "devices"), ("memory", "frees"), ("time a sample",))
_RIGHT = ("devices", "largest micro-batch", "memory", "frees", "time a sample")


def fit_report(result: FitResult) -> Group:
    """The largest micro-batch first, then what each memory technique changes."""
    parts: list[RenderableType] = [Text(_headline(result), style="bold")]
    if result.forecast is not None:
        forecast = result.forecast
        parts.append(Text(f"there a step takes {format_duration(forecast.step_time_s.value)}, "
                          f"{rate(forecast.throughput, forecast.throughput_unit)}"))  # fmt: skip
    asked = result.rows[0].memory
    if asked is not None:
        parts += [heading(f"memory at micro-batch {result.micro_batch:,}"), bars(asked.by_category, format_bytes)]
    parts += [heading(f"memory techniques at micro-batch {result.micro_batch:,}, to the first row"),
              columns(_COLUMNS, map(_row, result.rows), right=_RIGHT, wide="remark", narrow=_NARROW)]  # fmt: skip
    if result.nearest_techniques:
        parts += notes("it would fit here with", result.nearest_techniques)
    if result.nearest_chips:
        parts += notes("it would fit as asked on", result.nearest_chips)
    parts += notes("assumed", result.assumptions)
    return Group(*parts)


def _headline(result: FitResult) -> str:
    device = result.device + (f" x {result.count}" if result.count > 1 else "")
    if result.capacity_bytes is None:
        return f"{result.job} on {device}: its memory is not known"
    of = format_bytes(result.capacity_bytes)
    if result.fits:
        most = f"up to micro-batch {result.largest_micro_batch:,}"
        if result.largest_micro_batch == MOST_MICRO_BATCH:
            most = f"at micro-batch {MOST_MICRO_BATCH:,}, the largest tried"
        return f"{result.job} fits {device} ({of}) {most}"
    return f"{result.job} DOES NOT FIT {device} ({of}): not even one sample"


def _row(row: FitRow) -> list[str]:
    if row.unavailable is not None:
        return [row.technique, str(row.devices), *[UNKNOWN] * 4, row.unavailable]
    freed = "" if not row.freed_bytes else format_bytes(row.freed_bytes)
    return [
        row.technique,
        str(row.devices),
        "none" if row.largest_micro_batch is None else f"{row.largest_micro_batch:,}",
        UNKNOWN if row.memory is None else format_bytes(row.memory.device_bytes),
        freed,
        UNKNOWN if row.step_time_ratio is None else f"{row.step_time_ratio:.2f}x",
        row.note,
    ]
