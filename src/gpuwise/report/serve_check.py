"""A ServeCheck as text: forecast beside measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import BAR_CELLS, UNKNOWN, TextTable, columns, grid, heading, notes, number, percent
from gpuwise.report.serve_timing import timing_parts
from gpuwise.serving.check import CheckedFigure, ServeCheck
from gpuwise.units import format_duration

NAMES = {"ttft_s": "first token", "tpot_s": "a token", "latency_s": "whole answer"}
HEADERS = ("", "forecast", "90 % interval", "measured", "error", "inside")
RIGHT = ("forecast", "measured", "error")
BINS = 10  # of the picture


def serve_check_report(check: ServeCheck) -> Group:
    """Each figure as forecast and as measured, a picture of both distributions, then what was assumed."""
    rate = "all at once" if not isfinite(check.rate_per_s) else f"at {_rate(check.rate_per_s)}"
    parts: list[RenderableType] = [
        Text(f"{check.job} in {check.precision} on {check.device}: {check.counts.sent:,} requests {rate}", style="bold"),
        Text(""),
        _figures(check),
    ]
    if check.groups:
        parts += [heading("batches without waiting"), _groups(check)]
    if all(len(values) > 1 for values in check.latencies_s.values()):
        parts += [heading("latencies"), _picture(check.latencies_s)]
    if check.timing is not None:
        parts += timing_parts(check.timing, generates=check.generates)
    parts += [heading("requests"), grid(_counts(check))]
    parts += notes("remarks", check.remarks)
    parts += notes("assumed", check.assumptions)
    return Group(*parts)


def _figures(check: ServeCheck) -> TextTable:
    # Of a model without tokens the first one is the whole answer.
    names = NAMES if check.generates else {"latency_s": "latency"}
    rows = [
        _row(f"{words} p{level}", figure, format_duration)
        for name, words in names.items()
        for level, figure in check.latency.get(name, {}).items()
    ]
    if any(isfinite(limit) for limit in (check.limits.ttft_s, check.limits.tpot_s, check.limits.latency_s)):
        rows.append(_row("inside the limits", check.share_within, percent))
    rows.append(_row("model busy", check.utilisation, percent))
    rows.append(_row("most served", check.capacity, _rate))
    if check.saturation_rate != check.capacity.forecast:
        rows.append(_row("most within the limits", CheckedFigure(check.saturation_rate, None), _rate))
    return columns(HEADERS, rows, right=RIGHT)


def _groups(check: ServeCheck) -> TextTable:
    headers = ("requests", "batches", *HEADERS[1:])
    rows = [
        [f"{group.requests:,}", f"{group.count:,}", *_row("", group.seconds, format_duration)[1:]] for group in check.groups
    ]
    return columns(headers, rows, right=("requests", "batches", *RIGHT))


def _row(name: str, figure: CheckedFigure, show: Callable[[float], str]) -> list[str]:
    forecast, error, inside = figure.forecast, figure.error, figure.inside
    if not isfinite(forecast.value):
        shown = [UNKNOWN, ""]
    else:
        shown = [show(forecast.value), f"{show(forecast.low)} to {show(forecast.high)}"]
    measured = UNKNOWN if figure.measured is None or not isfinite(figure.measured) else show(figure.measured)
    return [
        name,
        *shown,
        measured,
        UNKNOWN if error is None else f"{100 * error:+.0f} %",
        {True: "yes", False: "no", None: ""}[inside],
    ]


def _counts(check: ServeCheck) -> list[tuple[str, str]]:
    counts = check.counts
    rows = [("answered", f"{counts.answered:,} of {counts.sent:,}; {counts.forecast_answered:,} as forecast")]
    if counts.turned_away:
        rows.append(("turned away", f"{counts.turned_away:,}: the queue was full"))
    if counts.left:
        rows.append(("left", f"{counts.left:,}: their clients waited too long"))
    return rows


def _picture(latencies_s: Mapping[str, Sequence[float]]) -> TextTable:
    """How many requests took how long, on a logarithmic scale: one row a span, a bar each for measured and forecast."""
    everything = np.concatenate([np.asarray(values) for values in latencies_s.values()])
    low, high = float(everything.min()), float(everything.max())
    edges = np.geomspace(low, max(high, low * 1.01), BINS + 1)
    shares = {
        name: np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values) for name, values in latencies_s.items()
    }
    longest = max(float(share.max()) for share in shares.values())

    def bar(share: float) -> str:
        return f"{'█' * round(BAR_CELLS * share / longest)} {percent(share)}" if share else ""

    rows = [
        [f"to {format_duration(float(edges[i + 1]))}", bar(shares["forecast"][i]), bar(shares["measured"][i])]
        for i in range(BINS)
    ]
    return columns(("", "forecast", "measured"), rows, right=("",))


def _rate(rate_per_s: float) -> str:
    return f"{number(rate_per_s)}/s" if rate_per_s >= 0.1 else f"{number(rate_per_s * 3600)}/h"
