"""Selects the plans inside budget and deadline, sorts them, and chooses those that the table shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gpuwise.notes import rejections
from gpuwise.plan.economics.terms import YEAR_S
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.time_and_money import TimeAndMoney
from gpuwise.units import format_duration, format_usd

_SAME_DEVICES = 2  # largest number of plans in the table with the same chip and count
# Without a deadline nothing longer than this is offered: a free tier would win every ranking with a decade of work.
_NO_DEADLINE_S = YEAR_S

Ranked = TypeVar("Ranked", bound=TimeAndMoney)


def plans_inside(plans: Sequence[Ranked], request: Request, rejected: Rejections) -> list[Ranked]:
    """The plans inside budget and deadline, best first. The others are counted, with their distance from the limit.

    Cheaper is better. Plans that `gpuwise train` cannot run follow those that it can, unless the request mixes them.
    """
    inside = []
    for plan in plans:
        hours_limit = (request.deadline_s or _NO_DEADLINE_S) / 3600
        what = f"{plan.count:g} × {plan.device} at {plan.offer.provider} ({plan.offer.instance}, {plan.offer.terms})"
        reason = None
        if plan.hours > hours_limit:
            reason = rejections.past_the_deadline() if request.deadline_s else rejections.over_a_year()
            detail, distance = format_duration(plan.hours * 3600), plan.hours
        elif request.budget_usd is not None and plan.usd.value > request.budget_usd:
            reason, detail, distance = rejections.over_budget(), format_usd(plan.usd.value), plan.usd.value
        elif plan.offer.stale and not request.stale:
            reason, distance = rejections.price_over_a_year_old(), plan.usd.value
            detail = f"{format_usd(plan.usd.value)} at the price of {plan.offer.as_of}"
        if reason is None:
            inside.append(plan)
        else:
            rejected.add(reason, what, detail, distance=distance, offer=plan.offer)
    return sorted(inside, key=lambda plan: (bool(plan.train_obstacle) and not request.xla, *_by_cost(plan)))


def _by_cost(plan: TimeAndMoney) -> tuple[float, float, float]:
    """Sort key: cheaper first. Plans within a cent of each other are sorted by speed."""
    return round(plan.usd.value, 2), plan.hours, plan.usd.value


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
