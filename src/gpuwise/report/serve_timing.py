"""Passes that were timed before a load as text, and what would have been forecast without them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from rich.console import RenderableType

from gpuwise.report.parts import TextTable, columns, grid, heading
from gpuwise.report.serving_choice import rate_words
from gpuwise.serving.check import CheckedFigure, CheckTiming
from gpuwise.serving.forecast import PlanTiming
from gpuwise.serving.profile import FORWARD, PROMPT, TOKEN, PassProfile, TimedPass
from gpuwise.serving.rows import ServingRow
from gpuwise.units import format_duration

PASSES = {FORWARD: "forward", PROMPT: "prompts", TOKEN: "a token each"}
NAMES = {"ttft_s": "first token", "tpot_s": "a token", "latency_s": "whole answer"}


def timing_parts(timing: CheckTiming, *, generates: bool) -> list[RenderableType]:
    """The timed passes beside their forecasts, then the latencies as forecast without them.

    generates: whether answers have a first token before their last one.
    """
    return [
        *_profile("passes timed before the load", timing.profile),
        heading("forecast without timing"),
        _untimed(timing, NAMES if generates else {"latency_s": "latency"}),
    ]


def plan_timing_parts(timing: PlanTiming, row: ServingRow, *, generates: bool) -> list[RenderableType]:
    """The timed passes beside their forecasts, then this machine's row with them and without.

    Arguments:
        row: from the timed passes.
        generates: as for timing_parts.
    """
    names = NAMES if generates else {"latency_s": "latency"}
    headers = ["here", "how many", "one serves", *(f"{words} p{level}" for words in names.values() for level in (50, 99))]
    rows = [_planned("from timed passes", row, names), _planned("as forecast", timing.untimed, names)]
    return [
        *_profile("passes timed before the plan", timing.profile),
        heading("with and without timing"),
        columns(headers, rows, right=headers[1:]),
    ]


def _planned(words: str, row: ServingRow, names: Mapping[str, str]) -> list[str]:
    if not row.replicas:
        return [words, "0", row.reason, *([""] * 2 * len(names))]
    seconds = [value for name in names for value in (row.latency[name].p50, row.latency[name].p99)]
    return [words, f"{row.replicas:,}", rate_words(row.saturation_rate), *(format_duration(each.value) for each in seconds)]


def _profile(title: str, profile: PassProfile) -> list[RenderableType]:
    return [heading(title), _passes(profile), grid(_summary(profile))]


def _passes(profile: PassProfile) -> TextTable:
    headers = ("", "requests", "tokens", "times", "forecast", "timed", "middle half", "error")
    rows = [_pass(each) for each in profile.passes]
    return columns(headers, rows, right=("requests", "tokens", "times", "forecast", "timed", "error"))


def _pass(each: TimedPass) -> list[str]:
    seconds = each.seconds
    return [
        PASSES[each.kind],
        f"{each.requests:,}",
        f"{each.tokens:,}" if each.kind != FORWARD else "",
        f"{len(each.rounds_s):,}",
        format_duration(each.forecast_s),
        format_duration(seconds.value),
        f"{format_duration(seconds.low)} to {format_duration(seconds.high)}",
        f"{100 * (1 / each.ratio - 1):+.0f} %",
    ]


def _summary(profile: PassProfile) -> list[tuple[str, str]]:
    rows = [("timing", f"{profile.count:,} passes in {format_duration(profile.took_s)}")]
    if profile.idle_s is not None:
        rows.append(("after an idle moment", f"{format_duration(profile.idle_s)} more"))
        rows.append(("between batches", format_duration(profile.costs.between_s)))
    return rows


def _untimed(timing: CheckTiming, names: Mapping[str, str]) -> TextTable:
    rows = [
        _row(f"{words} p{level}", figure)
        for name, words in names.items()
        for level, figure in timing.latency.get(name, {}).items()
        if isfinite(figure.forecast.value)
    ]
    return columns(("", "forecast", "90 % interval", "error"), rows, right=("forecast", "error"))


def _row(name: str, figure: CheckedFigure) -> list[str]:
    forecast, error = figure.forecast, figure.error
    interval = f"{format_duration(forecast.low)} to {format_duration(forecast.high)}"
    return [name, format_duration(forecast.value), interval, "" if error is None else f"{100 * error:+.0f} %"]
