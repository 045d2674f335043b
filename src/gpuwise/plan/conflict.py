"""LimitConflict: which limits leave no plan, the nearest plan on either side, and the smallest changes that admit one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.plan.economics.terms import YEAR_S
from gpuwise.plan.request import Request
from gpuwise.plan.time_and_money import TimeAndMoney, describe
from gpuwise.units import format_duration, format_usd

_CENTURY_H = 100 * YEAR_S / 3600  # longer deadlines are refused, so none is advised


@dataclass(frozen=True)
class LimitConflict:
    """Why no plan is inside the limits. Of each side the nearest plan is named.

    Attributes:
        limits: "budget" and "deadline" where only both together exclude all plans; else those that exclude all alone.
        cheapest, fastest: of all plans.
        cheapest_in_time: of the plans that keep the deadline (a year without one); None without any.
        fastest_in_budget: of the plans that keep the budget; None without any, or without a budget.
    """

    limits: tuple[str, ...]
    cheapest: TimeAndMoney
    fastest: TimeAndMoney
    cheapest_in_time: TimeAndMoney | None
    fastest_in_budget: TimeAndMoney | None

    @classmethod
    def of(cls, request: Request, plans: Sequence[TimeAndMoney]) -> LimitConflict:
        """The conflict of a request with plans, at least one, that are all outside its limits."""
        deadline_h = (request.deadline_s or YEAR_S) / 3600
        budget = math.inf if request.budget_usd is None else request.budget_usd
        in_time = [plan for plan in plans if plan.hours <= deadline_h]
        affordable = [] if request.budget_usd is None else [plan for plan in plans if plan.usd.value <= budget]
        alone = [] if in_time else ["deadline"]
        if request.budget_usd is not None and not affordable:
            alone.append("budget")
        return cls(
            tuple(alone) or ("budget", "deadline"),
            min(plans, key=_by_cost),
            min(plans, key=_by_time),
            min(in_time, key=_by_cost, default=None),
            min(affordable, key=_by_time, default=None),
        )

    @property
    def exclude_each_other(self) -> bool:
        """Whether each limit alone leaves plans, and both together none."""
        return self.cheapest_in_time is not None and self.fastest_in_budget is not None

    def sentences(self, request: Request) -> str:
        """Which limits, and the nearest plan on either side."""
        words = [f"a budget of {format_usd(request.budget_usd)}"] if request.budget_usd is not None else []
        words += [f"a deadline of {format_duration(request.deadline_s)}" if request.deadline_s is not None else "a year"]
        inside = " and ".join(words)
        if self.cheapest_in_time is not None and self.fastest_in_budget is not None:
            return (
                f"inside {inside}: the two exclude each other. In time, the cheapest is {describe(self.cheapest_in_time)}; "
                f"inside the budget, the fastest is {describe(self.fastest_in_budget)}."
            )
        which = {
            ("deadline",): ": every plan takes longer",
            ("budget",): ": every plan costs more",
            ("deadline", "budget"): ": every plan takes longer, and costs more",
        }[self.limits]
        return f"inside {inside}{which}. The cheapest is {describe(self.cheapest)}; the fastest is {describe(self.fastest)}."

    def ways_inside(self) -> list[str]:
        """The smallest changes of the limits that admit a plan: two where the limits exclude each other."""
        if self.fastest.hours > _CENTURY_H:
            return ["check how much is trained: no machine of the catalog does that in a century"]
        ways = []
        if self.cheapest_in_time is not None:
            ways.append(f"raise the budget to {format_usd(_above(self.cheapest_in_time.usd.value))}: --budget")
        patient = self.fastest_in_budget if "budget" not in self.limits or self.exclude_each_other else None
        if patient is None and self.limits == ("deadline",):
            patient = self.fastest
        if patient is not None and patient.hours <= _CENTURY_H:
            ways.append(f"give it {format_duration(_above(patient.hours) * 3600)}: --deadline")
        return ways or [
            f"raise the budget to {format_usd(_above(self.fastest.usd.value))} and the deadline to "
            f"{format_duration(_above(self.fastest.hours) * 3600)}"
        ]

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of the error's `conflict`."""
        sides = {"cheapest_in_time": self.cheapest_in_time, "fastest_in_budget": self.fastest_in_budget}
        return {
            "limits": list(self.limits),
            "exclude_each_other": self.exclude_each_other,
            **{
                name: None if plan is None else {"what": describe(plan), "hours": plan.hours, "usd": plan.usd.value}
                for name, plan in sides.items()
            },
        }


def _by_cost(plan: TimeAndMoney) -> tuple[float, float]:
    return plan.usd.value, plan.hours


def _by_time(plan: TimeAndMoney) -> tuple[float, float]:
    return plan.hours, plan.usd.value


def _above(value: float) -> float:
    """The value rounded up to two digits."""
    if value <= 0 or not math.isfinite(value):
        return value
    step: float = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / step) * step
