"""A ServingForecast of a model that answers in one forward pass, as text."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import UNKNOWN, TextTable, columns, notes, percent
from gpuwise.report.serve_timing import plan_timing_parts
from gpuwise.report.serving_choice import choice_parts, rate_words, small_usd
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving.instance import Latency
from gpuwise.serving.rows import ServingRow
from gpuwise.units import format_duration, format_usd

_LEFT = ("machine", "precision")


def forward_report(forecast: ServingForecast) -> Group:
    """Whether this machine is enough; a table with one row per kind of machine, cheapest first; then what is assumed."""
    served = [row for row in forecast.rows if row.replicas and not row.over_budget]
    limits = forecast.limits
    within = f", within {format_duration(limits.latency_s)} for {percent(limits.share)} of requests"
    title = f"{forecast.job} in forward passes at {rate_words(forecast.rate_per_s)}"
    parts: list[RenderableType] = [Text(title + (within if isfinite(limits.latency_s) else ""), style="bold")]
    parts += [Text(f"\n{remark}") for remark in forecast.remarks]
    parts += [Text(""), _table(served), *choice_parts(forecast)]
    if forecast.timing is not None:
        here = next(row for row in forecast.rows if row.device == forecast.timing.untimed.device)
        parts += plan_timing_parts(forecast.timing, here, generates=forecast.generates)
    parts += notes("why", [_why(row) for row in served[:2]])
    parts += notes("no answer", [f"{row.device}: {row.why_not}" for row in forecast.rows if not row.replicas])
    parts += notes("assumed", forecast.assumptions)
    return Group(*parts)


def _table(rows: Sequence[ServingRow]) -> TextTable:
    groups = [
        ["machine", "how many", "load"],
        ["precision", "batch", "window"],
        ["one serves"],
        ["latency p50", "p90", "p99"],
        ["$ a month", "$ a million requests"],
    ]
    headers = [header for group in groups for header in group]
    right = [header for header in headers if header not in _LEFT]
    return columns(headers, [_row(row) for row in rows], right=right, wide="machine", narrow=groups)


def _row(row: ServingRow) -> list[str]:
    assert row.forward is not None
    latency, window_s = row.latency["latency_s"], row.forward.window_s
    return [
        row.device,
        f"{row.replicas:,}" + (f" of {row.forward.servers} servers" if row.forward.servers > 1 else ""),
        percent(row.load),
        row.forward.precision,
        f"{row.forward.batch:,}",
        format_duration(window_s) if window_s else "none",
        rate_words(row.saturation_rate),
        *_latencies(latency),
        UNKNOWN if row.usd_per_month is None else format_usd(row.usd_per_month),
        UNKNOWN if row.usd_per_request is None else small_usd(1e6 * row.usd_per_request),
    ]


def _latencies(latency: Latency) -> list[str]:
    """Percentiles with the ends of their intervals."""
    return [
        f"{format_duration(each.value)} ({format_duration(each.low)} to {format_duration(each.high)})"
        for each in (latency.p50, latency.p90, latency.p99)
    ]


def _why(row: ServingRow) -> str:
    assert row.forward is not None
    return (
        f"{row.device}: a pass of {row.forward.batch:,} takes {format_duration(row.forward.seconds.value)}; {row.forward.why}"
    )
