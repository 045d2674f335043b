"""RunCosts as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import columns, grid, notes, span
from gpuwise.results.run_costs import AttemptTime, RunCosts
from gpuwise.units import format_duration, format_usd

_WITH_MORE = {"set-up": ", with the four below"}  # what a plan counts together
_ENDS = {"": "killed, or running", "error": "failed"}


def run_costs_report(costs: RunCosts) -> Group:
    """The time of a run by use, its attempts, and both beside the plan."""
    of = "" if costs.steps is None else f" of {costs.steps:,}"
    count = len(costs.attempts)
    title = f"{costs.step:,}{of} steps in {count:,} attempt{'s' * (count != 1)}, {format_duration(costs.hours_spent * 3600)}"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(""), grid(_totals(costs)), Text(""), _uses(costs)]
    if count > 1 or costs.attempts[0].host:
        parts += [Text(""), _attempts(costs.attempts)]
    return Group(*parts, *notes("beside the plan", costs.explanations))


def _totals(costs: RunCosts) -> Iterator[tuple[str, str]]:
    if costs.step_time_s is not None:
        planned = "" if costs.step_time_planned_s is None else f"; planned {format_duration(costs.step_time_planned_s)}"
        yield "step", f"{format_duration(costs.step_time_s)} with its wait for data{planned}"
    hours = format_duration(costs.hours_spent * 3600)
    if costs.hours_expected > costs.hours_spent:
        hours += f" so far, {format_duration(costs.hours_expected * 3600)} at the end"
    if costs.hours_planned is not None:
        seconds = costs.hours_planned.scaled(3600)
        hours += f"; planned {format_duration(seconds.value)} {span(seconds, format_duration)}"
    yield "time", hours
    money = costs.money
    if money is None:
        return
    dollars = format_usd(money.spent_usd)
    if costs.hours_expected > costs.hours_spent:
        dollars += f" so far, {format_usd(money.expected_usd)} at the end"
    yield "money", f"{dollars}; planned {format_usd(money.planned_usd.value)} {span(money.planned_usd, format_usd)}"
    rentals = f"{money.rentals:,} rental{'s' * (money.rentals != 1)}"
    yield "", f"{format_duration(money.billed_s)} billed in {rentals} at {format_usd(money.usd_per_hour)} an hour"
    if money.released_usd < money.spent_usd:
        yield "", f"{format_usd(money.released_usd)} where machines were given back between attempts on one host"


def _uses(costs: RunCosts) -> RenderableType:
    rows = [
        [
            part.name,
            format_duration(part.spent_s),
            format_duration(part.expected_s),
            "" if part.planned_s is None else format_duration(part.planned_s) + _WITH_MORE.get(part.name, ""),
        ]
        for part in costs.parts
    ]
    return columns(("use", "so far", "at the end", "planned"), rows, right=("so far", "at the end", "planned"))


def _attempts(attempts: tuple[AttemptTime, ...]) -> RenderableType:
    rows = [
        [
            str(each.number),
            each.host,
            each.device,
            each.began[:19].replace("T", " "),
            format_duration(each.wall_s),
            f"{each.first_step:,} to {each.last_step:,}" if each.last_step else "none",
            format_duration(each.again_s) if each.again_s else "",
            _ENDS.get(each.end, each.end),
        ]
        for each in attempts
    ]
    return columns(
        ("attempt", "host", "device", "began (UTC)", "time", "steps", "taken again", "end"), rows, right=("attempt", "time")
    )
