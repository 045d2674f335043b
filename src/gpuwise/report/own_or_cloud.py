"""A machine of the user's against the cloud: when the run is done on either, and what the difference costs."""

from __future__ import annotations

from gpuwise.plan.owned_machine import OwnedMachine
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.time_and_money import describe
from gpuwise.plan.types import Plan
from gpuwise.units import format_duration, format_usd

_RENTED = ("on-demand", "spot")


def own_or_cloud(result: PlanResult) -> list[str]:
    """A sentence for each machine named with --own: the cheapest rental of the table, and the fastest."""
    rented = [plan for plan in result.plans if plan.offer.terms in _RENTED and not plan.train_obstacle]
    if not rented:
        return []
    cheapest = min(rented, key=lambda plan: (plan.usd.value, plan.hours))
    fastest = min(rented, key=lambda plan: (plan.hours, plan.usd.value))
    rentals = [cheapest] if fastest is cheapest else [cheapest, fastest]
    return [
        f"your {machine.count:g} × {machine.device} {_own_words(machine)}; "
        + "; ".join(_against(machine, plan) for plan in rentals)
        for machine in result.at_hand
        if machine.offer.provider == "own"
    ]


def _own_words(machine: OwnedMachine) -> str:
    if machine.hours is None or machine.usd is None:
        return f"cannot do it ({machine.reason})"
    return f"is done after {format_duration(machine.hours * 3600)} for {format_usd(machine.usd)}"


def _against(machine: OwnedMachine, plan: Plan) -> str:
    words = describe(plan)
    if machine.hours is None or machine.usd is None:
        return words
    hours, usd = machine.hours - plan.hours, plan.usd.value - machine.usd
    when = f"{format_duration(abs(hours) * 3600)} {'sooner' if hours > 0 else 'later'}"
    return f"{words}, {when} and {format_usd(abs(usd))} {'dearer' if usd > 0 else 'cheaper'}"
