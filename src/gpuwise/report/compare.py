"""A Comparison as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.compare import CompareRow, Comparison
from gpuwise.report.forecast import fits_words
from gpuwise.report.parts import UNKNOWN, columns, memory_of, notes, rate, strategy_words
from gpuwise.units import format_duration

_COLUMNS = ("device", "strategy", "step time", "90 % interval", "throughput", "speed-up", "memory", "")
_NARROW = (("device", "strategy"), ("step time", "90 % interval"), ("throughput", "speed-up"), ("memory", ""))
_RIGHT = ("step time", "throughput", "speed-up")


def compare_report(comparison: Comparison) -> Group:
    """A table with one row per device, then the reason for each speed-up."""
    rows = comparison.rows
    parts: list[RenderableType] = [
        Text(f"{comparison.job} on {len(rows)} devices; speed-ups over {comparison.baseline}", style="bold"),
        Text(""),
        columns(_COLUMNS, map(_row, rows), right=_RIGHT, wide="strategy", narrow=_NARROW),
    ]
    parts += notes("why", [f"{row.device}: {row.reason}" for row in rows if row.reason])
    parts += notes("assumed", comparison.assumptions)
    parts += notes("warnings", [line for row in rows if row.forecast for line in row.forecast.warnings])
    return Group(*parts)


def _row(row: CompareRow) -> list[str]:
    forecast = row.forecast
    if forecast is None:
        return [row.device, "no forecast", *[UNKNOWN] * 5, ""]
    time = forecast.step_time_s
    return [
        row.device,
        strategy_words(forecast.strategy),
        format_duration(time.value),
        f"{format_duration(time.low)} to {format_duration(time.high)}",
        rate(forecast.throughput, forecast.throughput_unit),
        UNKNOWN if row.speedup is None else f"{row.speedup:,.3g}x",
        memory_of(forecast.memory.device_bytes, forecast.memory.capacity_bytes),
        fits_words(forecast),
    ]
