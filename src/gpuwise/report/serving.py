"""A ServingForecast as text."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.cost.forecast import Interval
from gpuwise.report.parts import UNKNOWN, TextTable, columns, notes, percent
from gpuwise.report.serve_timing import plan_timing_parts
from gpuwise.report.serving_choice import choice_parts, rate_words, small_usd
from gpuwise.report.serving_forward import forward_report
from gpuwise.report.serving_running import running_parts
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving.rows import ServingRow
from gpuwise.serving.saturation import Limits
from gpuwise.units import counted, format_duration, format_usd

_LEFT = ("instance",)


def serving_report(forecast: ServingForecast) -> Group:
    """A table with one row per kind of instance, cheapest first; then what is assumed."""
    if not forecast.generates:
        return forward_report(forecast)
    served = [row for row in forecast.rows if row.replicas and not row.over_budget]
    parts: list[RenderableType] = [
        Text(
            f"{forecast.job} in {forecast.weights} at {_rate(forecast)}{_limits(forecast.limits)}",
            style="bold",
        ),
        Text(""),
        _table(served),
        *choice_parts(forecast),
        *running_parts(forecast),
    ]
    if forecast.timing is not None:
        here = next(row for row in forecast.rows if row.device == forecast.timing.untimed.device)
        parts += plan_timing_parts(forecast.timing, here, generates=forecast.generates)
    parts += notes("how they serve", [f"{row.device}: {row.mode.words}" for row in served if row.mode is not None])
    parts += notes("no answer", [f"{row.device}: {row.why_not}" for row in forecast.rows if not row.replicas])
    parts += notes("assumed", forecast.assumptions)
    return Group(*parts)


def _table(rows: Sequence[ServingRow]) -> TextTable:
    groups = [
        ["instance", "how many", "load", "one serves"],
        ["first token p50", "p99", "a token p50", "p99 "],
        ["$ a month", "$ a 1,000 requests", "$ a million written", "$ a million of both"],
    ]
    headers = [header for group in groups for header in group]
    return columns(
        headers,
        [_row(row) for row in rows],
        right=[header for header in headers if header not in _LEFT],
        wide="instance",
        narrow=groups,
    )


def _row(row: ServingRow) -> list[str]:
    first, token = row.latency["ttft_s"], row.latency["tpot_s"]
    return [
        row.device,
        f"{row.replicas:,}",
        percent(row.load),
        rate_words(row.saturation_rate),
        _latency(first.p50),
        _latency(first.p99),
        _latency(token.p50),
        _latency(token.p99),
        UNKNOWN if row.usd_per_month is None else format_usd(row.usd_per_month),
        UNKNOWN if row.usd_per_request is None else small_usd(1000 * row.usd_per_request),
        UNKNOWN if row.usd_per_million_output is None else small_usd(row.usd_per_million_output),
        UNKNOWN if row.usd_per_million_tokens is None else small_usd(row.usd_per_million_tokens),
    ]


def _latency(interval: Interval) -> str:
    """A latency with the ends of its interval."""
    if not isfinite(interval.value):
        return UNKNOWN
    return f"{format_duration(interval.value)} ({format_duration(interval.low)} to {format_duration(interval.high)})"


def _rate(forecast: ServingForecast) -> str:
    """'5/s', or '5/s on average, 9.5/s at the busiest time' where the rate changes over the day; or the users who wait."""
    if isinstance(clients := forecast.arrivals.get("clients"), int):
        return f"the rate that {counted(clients, 'user')} {'reaches' if clients == 1 else 'reach'}"
    mean, peak = forecast.rate_per_s, max((row.running.schedule.peak for row in forecast.rows), default=1.0)
    return rate_words(mean) + (f" on average, {rate_words(peak * mean)} at the busiest time" if peak > 1 else "")


def _limits(limits: Limits) -> str:
    named = {"first token": limits.ttft_s, "a token": limits.tpot_s, "an answer": limits.latency_s}
    words = [f"{name} within {format_duration(value)}" for name, value in named.items() if isfinite(value)]
    return f", {', '.join(words)} for {percent(limits.share)} of requests" if words else ""
