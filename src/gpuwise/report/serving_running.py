"""How the instances of a ServingForecast run: by hour, started, stopped, taken away, and what they draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import RenderableType

from gpuwise.report.parts import grid, heading, number, percent, span
from gpuwise.report.serving_choice import rate_words
from gpuwise.serving.cold_start import TERMS
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving.idle import ScaledToZero
from gpuwise.serving.rows import ServingRow
from gpuwise.serving.spot_fleet import SpotFleet
from gpuwise.units import counted, format_duration, format_usd

_WORDS = {"image": "image", "graphs": "CUDA graphs", "process_and_compile": "process and compile"}


def running_parts(forecast: ServingForecast) -> list[RenderableType]:
    """The parts on hours, stops, spot machines, cold starts and energy; those that were not looked at are left out."""
    rows = [row for row in forecast.rows if row.replicas and not row.over_budget]
    parts = _part("reached", rows, _reached_words)
    if any(row.running.schedule.follows for row in rows):
        parts += [heading("instances by hour of the day"), grid([(row.device, hours_words(row)) for row in rows])]
    parts += _part("stopped when idle", rows, lambda row: idle_words(row.running.idle) if row.running.idle else None)
    parts += _part("spot machines", rows, lambda row: spot_words(row.running.spot) if row.running.spot else None)
    if rows and rows[0].running.cold_start is not None:
        parts += [heading(f"cold start of {rows[0].device}"), grid(_cold_start(rows[0]))]
    parts += _part("energy of the devices", rows, _energy_words)
    return parts


def hours_words(row: ServingRow) -> str:
    """'0 to 7: 1, 8 to 19: 4, 20 to 23: 2; 62.3 hours paid a day of 96 always on'."""
    by_hour = enumerate(row.running.instances)
    runs = [(count, [hour for hour, _ in run]) for count, run in groupby(by_hour, lambda pair: pair[1])]
    words = [f"{hours[0]} to {hours[-1]}: {count}" if len(hours) > 1 else f"{hours[0]}: {count}" for count, hours in runs]
    return f"{', '.join(words)}; {row.running.hours_paid_per_day:.1f} hours paid a day of {24 * row.replicas} always on"


def idle_words(idle: ScaledToZero) -> str:
    """Who waits how long, and what it costs against an instance that is always on."""
    money = ""
    if idle.usd_per_month is not None and idle.always_on_usd_per_month is not None:
        money = f"; {format_usd(idle.usd_per_month)} a month against {format_usd(idle.always_on_usd_per_month)} always on"
    even = f"a stop pays after {format_duration(idle.break_even_idle_s)} without a request"
    if not idle.stops or idle.wait_s is None:
        return f"never stops at this rate: {even}"
    return (
        f"{_share(idle.cold_share)} of requests wait for a start, {format_duration(idle.wait_s)} on average; "
        f"{number(idle.starts_per_month)} starts a month{money}; {even}"
    )


def spot_words(spot: SpotFleet) -> str:
    """How many more there are, and whose requests are sent again."""
    usual = spot.on_demand_usd_per_hour
    on_demand = "" if usual is None else f" against {format_usd(usual)} on demand"
    on_demand += "" if usual is None or usual > spot.usd_per_hour else ", which is cheaper: leave out --spot"
    return (
        f"{counted(spot.spare, 'instance')} to spare; {number(spot.lost_per_month)} lost a month, and "
        f"{number(spot.retried_per_month)} requests ({_share(spot.retried_share)}) sent again; "
        f"{format_usd(spot.usd_per_hour)} an hour each{on_demand}"
    )


def _reached_words(row: ServingRow) -> str | None:
    """The rate of a closed loop."""
    if row.reached_per_s is None:
        return None
    each = counted(row.clients, "user")
    where = f"on each of {row.replicas:,} instances" if row.replicas > 1 else "on one instance"
    return f"{rate_words(row.reached_per_s)} by {each} {where}"


def _energy_words(row: ServingRow) -> str | None:
    energy = row.energy
    if energy is None:
        return None
    token, request = energy.joules_per_token, energy.joules_per_request
    return (
        f"{number(token.value)} J a token written {span(token, number)}, {number(request.value)} J a request; "
        f"{energy.watts.value:.0f} W a device, which works {percent(energy.utilisation)} of the time"
    )


def _cold_start(row: ServingRow) -> list[tuple[str, str]]:
    assert row.running.cold_start is not None
    terms = [(_WORDS.get(name, name.replace("_", " ")), getattr(row.running.cold_start, name)) for name in TERMS]
    return [
        (name, f"{format_duration(term.value)} {span(term, _seconds)}")
        for name, term in [*terms, ("all", row.running.cold_start.total_s)]
    ]


def _seconds(value: float) -> str:
    return format_duration(value) if value else "0"


def _share(share: float) -> str:
    return f"{100 * share:.2g} %"


def _part(title: str, rows: Sequence[ServingRow], words_of: Callable[[ServingRow], str | None]) -> list[RenderableType]:
    lines = [(row.device, words) for row in rows if (words := words_of(row))]
    return [heading(title), grid(lines)] if lines else []
