"""Selects the options inside budget and deadline, ranks them by the objective, and chooses those that the table shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from gpuwise.notes import Note, rejections
from gpuwise.plan.economics.terms import YEAR_S
from gpuwise.plan.option import Option
from gpuwise.plan.ranking.chance import Spreads, chance_inside
from gpuwise.plan.ranking.columns import FloatArray, PlanColumns
from gpuwise.plan.ranking.objectives import ranked
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.time_and_money import TimeAndMoney
from gpuwise.units import format_duration, format_usd

_SAME_DEVICES = 2  # largest number of plans in the table with the same chip and count
# Without a deadline nothing longer than this is offered: a free tier would win every ranking with a decade of work.
_NO_DEADLINE_S = YEAR_S

Ranked = TypeVar("Ranked", bound=TimeAndMoney)


def columns_of(options: Sequence[Option]) -> PlanColumns:
    """The figures that objectives compare."""
    return PlanColumns(
        hours=_column([option.hours for option in options]),
        usd=_column([option.usd.value for option in options]),
        energy_j=_column([option.energy_j for option in options]),
        memory_bytes=_column([option.memory_bytes for option in options]),
        usd_per_sample=_column([option.usd_per_sample for option in options]),
    )


def _column(values: Sequence[float | None]) -> FloatArray:
    return np.array(values, dtype=float)  # None becomes nan


def with_chances(options: Sequence[Option], request: Request) -> list[Option]:
    """The options with their probability to keep the request's deadline and budget."""
    if request.deadline_s is None and request.budget_usd is None:
        return list(options)
    spreads = Spreads(
        hours=_column([option.hours for option in options]),
        usd=_column([option.usd.value for option in options]),
        log_hours=_column([option.log_hours for option in options]),
        log_price=_column([option.log_price for option in options]),
        usd_follows=_column([option.usd_follows for option in options]),
    )
    deadline_h = None if request.deadline_s is None else request.deadline_s / 3600
    chances = chance_inside(spreads, deadline_h=deadline_h, budget_usd=request.budget_usd)
    return [replace(option, chance=chance) for option, chance in zip(options, chances.tolist(), strict=True)]


def outside(option: Option, request: Request) -> tuple[Note, str, float] | None:
    """Why an option is outside the limits, its distance in words and as a number; None inside."""
    if option.hours > (request.deadline_s or _NO_DEADLINE_S) / 3600:
        reason = rejections.past_the_deadline() if request.deadline_s else rejections.over_a_year()
        return reason, format_duration(option.hours * 3600), option.hours
    usd = option.usd.value
    if request.budget_usd is not None and usd > request.budget_usd:
        return rejections.over_budget(), format_usd(usd), usd
    if option.offer.stale and not request.stale:
        return rejections.price_over_a_year_old(), f"{format_usd(usd)} at the price of {option.offer.as_of}", usd
    return None


def plans_inside(options: Sequence[Option], request: Request, rejected: Rejections) -> list[Option]:
    """The options inside budget and deadline, best first. The others are counted, with their distance from the limit.

    Options that `gpuwise train` can run come first, unless the request mixes them. Among each kind, those come first whose
    chance to keep both limits is at least the requested confidence. Then the objective decides, and its tie-breaks.
    """
    inside = []
    for option in options:
        problem = outside(option, request)
        if problem is None:
            inside.append(option)
            continue
        reason, detail, distance = problem
        what = f"{option.count:g} × {option.device} at {option.offer.provider} ({option.offer.instance}, {option.offer.terms})"
        rejected.add(reason, what, detail, distance=distance, offer=option.offer)
    return ranked_options(inside, request)


def ranked_options(options: Sequence[Option], request: Request) -> list[Option]:
    """The options, best first, as `plans_inside` ranks them; those outside the limits follow the others."""
    tiers = [
        4 * (outside(option, request) is not None)
        + 2 * (bool(option.train_obstacle) and not request.xla)
        + may_miss(option, request)
        for option in options
    ]
    order = ranked(columns_of(options), request.objective, tier=np.array(tiers, dtype=np.int64))
    return [options[row] for row in order.tolist()]


def may_miss(plan: TimeAndMoney, request: Request) -> bool:
    """Whether the chance to keep the limits is below the requested confidence."""
    return plan.chance < request.confidence


def money_times_time(plan: TimeAndMoney) -> float:
    """The quantity that "best value" minimises. An added cent lets time decide among free plans."""
    return plan.hours * (plan.usd.value + 0.01)


def choose_shown(inside: Sequence[Ranked], limit: int | None, rejected: Rejections) -> list[Ranked]:
    """The first plans, with no chip and count more than twice. The others are counted.

    Always included are:

    - the best plan at a usual price,
    - the user's own machines,
    - the fastest and the best value of the plans that `gpuwise train` can run,
    - the cheapest and the fastest of those that it cannot run.
    """
    if limit is None or not inside:
        return list(inside)
    kept = {id(plan) for plan in _notable(inside)[:limit]}
    room = limit - len(kept)
    shown: list[Ranked] = []
    seen: dict[tuple[str, float], int] = {}
    for plan in inside:
        same = seen.get((plan.device, plan.count), 0)
        if id(plan) in kept or (same < _SAME_DEVICES and room > 0):
            room -= id(plan) not in kept
            shown.append(plan)
            seen[plan.device, plan.count] = same + 1
        else:
            what = f"{plan.count:g} × {plan.device} at {plan.offer.provider}"
            rejected.add(rejections.ranked_lower(), what, distance=plan.usd.value, offer=plan.offer)
    return shown


def best_at_usual_price(ranked: Sequence[Ranked], inside: Sequence[Ranked]) -> Ranked | None:
    """The best plan at a usual price, if the price of the first plan is an outlier.

    It is a plan of the table with its rank, else one of all plans inside budget and deadline.
    """
    if not ranked or not ranked[0].price_outlier:
        return None
    return next((plan for plan in (*ranked, *inside) if not plan.price_outlier), None)


def _notable(inside: Sequence[Ranked]) -> list[Ranked]:
    """The plans that the table must include, most important first, without repetitions."""
    runs = [plan for plan in inside if not plan.train_obstacle]
    rest = [plan for plan in inside if plan.train_obstacle]
    usual = best_at_usual_price(inside, inside)
    notable = [inside[0], *([usual] if usual else []), *(plan for plan in inside if plan.offer.terms == "owned")]
    for group in (runs, rest):
        if group:
            notable += [group[0], min(group, key=lambda plan: (plan.hours, plan.usd.value))]
    if runs:
        notable.append(min(runs, key=money_times_time))
    return list({id(plan): plan for plan in notable}.values())
