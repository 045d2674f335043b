"""Chooses those of the ranked options that the table shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gpuwise.notes import rejections
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.time_and_money import TimeAndMoney

_SAME_DEVICES = 2  # largest number of plans in the table with the same chip and count

Ranked = TypeVar("Ranked", bound=TimeAndMoney)


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
    - the first, the cheapest (it may miss a limit), the fastest and the best value of the plans that `gpuwise train` can run,
    - the first, the cheapest and the fastest of those that it cannot run.
    """
    if limit is None or not inside:
        return list(inside)
    kept = {id(plan) for plan in _notable(inside)[:limit]}
    room = limit - len(kept)
    shown: list[Ranked] = []
    seen: dict[tuple[str, float], int] = {}
    lower = rejections.ranked_lower()
    for plan in inside:
        same = seen.get((plan.device, plan.count), 0)
        if id(plan) in kept or (same < _SAME_DEVICES and room > 0):
            room -= id(plan) not in kept
            shown.append(plan)
            seen[plan.device, plan.count] = same + 1
        else:
            rejected.add(lower, _Words(plan), distance=plan.usd.value, offer=plan.offer)
    return shown


class _Words:
    """A plan in words, once they are needed."""

    def __init__(self, plan: TimeAndMoney):
        self._plan = plan

    def __str__(self) -> str:
        return f"{self._plan.count:g} × {self._plan.device} at {self._plan.offer.provider}"


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
            notable += [group[0], min(group, key=lambda plan: (round(plan.usd.value, 2), plan.hours))]
            notable.append(min(group, key=lambda plan: (plan.hours, plan.usd.value)))
    if runs:
        notable.append(min(runs, key=money_times_time))
    return list({id(plan): plan for plan in notable}.values())
