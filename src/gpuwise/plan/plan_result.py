"""PlanResult: what `plan` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.cpu.enough import CpuEnough
from gpuwise.plan.owned_machine import OwnedMachine
from gpuwise.plan.pareto import ParetoFront
from gpuwise.plan.rejection import Rejection
from gpuwise.plan.types import Plan
from gpuwise.plan.verified import Verified
from gpuwise.plan.why.types import PlanWhy
from gpuwise.printed import Printed


@dataclass(frozen=True, repr=False)
class PlanResult(Printed):
    """Plans, best first.

    Attributes:
        plans: the plans of the table.
        rejected: rejected offers, counted by reason.
        assumption_notes: guesses shared by all plans, with the flags that change them.
        considered: number of offers examined.
        priced: number of forecasts made.
        at_hand: the user's own machines, ranked or not.
        best_at_usual_price: the best plan at a usual price, if the price of the first plan is an outlier; None if no such
            plan is inside budget and deadline.
        why: why the first plan and those that the user names stand where they stand; empty if nobody asks.
        front: the Pareto front of time, money and energy; None in a result made by hand.
        cpu_enough: whether this machine's CPU is enough; None where it is not considered, or cannot train the job.
        verified: what exact forecasts changed of composed strategies; None where none were composed.
        composed: number of strategies composed of the model's blocks, of which the fastest were forecast; 0 by default.
    """

    plans: tuple[Plan, ...]
    rejected: Mapping[str, Rejection]
    assumption_notes: tuple[Note, ...]
    considered: int
    priced: int
    at_hand: tuple[OwnedMachine, ...] = ()
    best_at_usual_price: Plan | None = None
    front: ParetoFront | None = None
    why: tuple[PlanWhy, ...] = ()
    cpu_enough: CpuEnough | None = None
    verified: Verified | None = None
    composed: int = 0

    @property
    def best(self) -> Plan:
        return self.plans[0]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of all plans as sentences."""
        return sentences(self.assumption_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`. rejected: counts by reason; rejected_examples: the nearest."""
        return {
            "plans": [plan.to_dict() for plan in self.plans],
            "rejected": {reason: rejection.count for reason, rejection in self.rejected.items()},
            "rejected_examples": {reason: list(rejection.examples) for reason, rejection in self.rejected.items()},
            "rejection_notes": [rejection.to_dict() for rejection in self.rejected.values()],
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "considered": self.considered,
            "priced": self.priced,
            "composed": self.composed,
            "pareto": [] if self.front is None else [point.to_dict() for point in self.front.points],
            "why": [each.to_dict() for each in self.why],
            "cpu_enough": None if self.cpu_enough is None else self.cpu_enough.to_dict(),
            "at_hand": [machine.to_dict() for machine in self.at_hand],
            "verified": None if self.verified is None else self.verified.to_dict(),
            "best_at_usual_price": None if self.best_at_usual_price is None else self.best_at_usual_price.to_dict(),
        }
