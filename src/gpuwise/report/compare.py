"""A Comparison as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.cost.forecast import Forecast
from gpuwise.plan.compare import CompareRow, Comparison
from gpuwise.report.forecast import fits_words, scale_of, unit_of
from gpuwise.report.parts import UNKNOWN, TextTable, columns, memory_of, notes, percent, rate, strategy_words
from gpuwise.units import counted, format_duration, format_usd

_LEFT = ("device", "strategy", "90 % interval", "memory", "")


def compare_report(comparison: Comparison) -> Group:
    """A table with one row per device, then the reason for each speed-up."""
    rows = comparison.rows
    parts: list[RenderableType] = [
        Text(f"{comparison.job} on {counted(len(rows), 'device')}; speed-ups over {comparison.baseline}", style="bold"),
        Text(""),
        _table(rows),
    ]
    parts += notes("why", [f"{row.device}: {row.reason}" for row in rows if row.reason])
    parts += notes("assumed", comparison.assumptions)
    parts += notes("warnings", list(dict.fromkeys(line for row in rows if row.forecast for line in row.forecast.warnings)))
    return Group(*parts)


def _table(rows: Sequence[CompareRow]) -> TextTable:
    """One row a device. The throughput of one device stands there where some are several, the cost where a price is known."""
    forecasts = [row.forecast for row in rows if row.forecast is not None]
    groups = [["device", "strategy"], ["step time", "90 % interval"], ["throughput"], ["speed-up", "mfu"], ["memory", ""]]
    if any(forecast.count > 1 for forecast in forecasts):
        groups[2].append("a device")
    each = min((f.usd_per_million for f in forecasts if f.usd_per_million is not None), default=0.0) / 1e6
    many, word = scale_of(each)
    cost = f"a {word} {unit_of(forecasts[0])}"
    if each:
        groups.insert(-1, [cost])
    headers = [header for group in groups for header in group]
    cells = [_row(row, headers, {cost: many}) for row in rows]
    right = [header for header in headers if header not in _LEFT]
    return columns(headers, cells, right=right, wide="strategy", narrow=groups)


def _row(row: CompareRow, headers: Sequence[str], costs: dict[str, float]) -> list[str]:
    """The cells under the headers. costs: of how many units a column of costs is, by its header."""
    forecast = row.forecast
    if forecast is None:
        cells = {"device": row.device, "strategy": "no forecast", "": ""}
    else:
        cells = {"device": row.device, **_cells(forecast)}
        cells["speed-up"] = UNKNOWN if row.speedup is None else f"{row.speedup:,.3g}x"
        for header, many in costs.items():
            usd = forecast.usd_per_million
            cells[header] = UNKNOWN if usd is None else format_usd(usd / 1e6 * many)
    return [cells.get(header, UNKNOWN) for header in headers]


def _cells(forecast: Forecast) -> dict[str, str]:
    time = forecast.step_time_s
    return {
        "strategy": strategy_words(forecast.strategy),
        "step time": format_duration(time.value),
        "90 % interval": f"{format_duration(time.low)} to {format_duration(time.high)}",
        "throughput": rate(forecast.throughput, forecast.throughput_unit),
        "a device": rate(forecast.throughput_per_device, forecast.throughput_unit),
        "mfu": UNKNOWN if forecast.mfu is None else percent(forecast.mfu),
        "memory": memory_of(forecast.memory.device_bytes, forecast.memory.capacity_bytes),
        "": fits_words(forecast),
    }
