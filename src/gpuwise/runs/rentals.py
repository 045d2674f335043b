"""What the attempts of a run cost: rentals of machines, billed by the terms of a provider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwise.hardware.providers import provider
from gpuwise.plan.economics.bills import RESERVED_S
from gpuwise.plan.economics.rented import STORED_CHECKPOINTS, storage_usd_per_hour
from gpuwise.plan.economics.terms import HOUR_S
from gpuwise.results.run_costs import AttemptTime
from gpuwise.runs.plan_record import PlanRecord

BY_THE_HOUR = ("on-demand", "spot")  # terms with a minimum and a step of billing


@dataclass(frozen=True)
class RentalBill:
    """Of the rentals so far. billed_s: machine time that is billed; usd: for it."""

    billed_s: float
    usd: float


def rentals(attempts: Sequence[AttemptTime], *, terms: str) -> list[float]:
    """Seconds of each rental. Attempts on one host, one after the other, share one, with the idle time between them.

    A machine that was given back would come again under another name. One's own and free ones cost nothing while idle.
    """
    spans: list[float] = []
    before: AttemptTime | None = None
    for attempt in attempts:
        same = before is not None and terms in (*BY_THE_HOUR, *RESERVED_S) and attempt.host and attempt.host == before.host
        if same and before is not None:
            spans[-1] += max(0.0, unix_of(attempt.ended) - unix_of(before.ended))
        else:
            spans.append(attempt.wall_s)
        before = attempt
    return spans


def bill_of(spans_s: Sequence[float], plan: PlanRecord) -> RentalBill:
    """The bill of rentals at the plan's price: each at least the provider's minimum, and rounded up to its step."""
    if plan.terms in RESERVED_S:
        term_s = RESERVED_S[plan.terms]
        billed_s = math.ceil(sum(spans_s) / term_s) * term_s
    elif plan.terms in BY_THE_HOUR:
        where = provider(plan.provider)
        step_s = where.billing_step_s
        billed_s = sum(math.ceil(max(span, where.minimum_billing_s) / step_s) * step_s for span in spans_s)
    else:
        billed_s = sum(spans_s)
    return RentalBill(billed_s, billed_s / HOUR_S * plan.usd_per_hour)


def storage_usd(checkpoint_bytes: float, calendar_s: float, plan: PlanRecord) -> float:
    """For the checkpoints of a run that the plan counts as stored at a time."""
    if plan.terms not in (*BY_THE_HOUR, *RESERVED_S):
        return 0.0
    price = storage_usd_per_hour(STORED_CHECKPOINTS * checkpoint_bytes, provider(plan.provider))
    return price * calendar_s / HOUR_S


def unix_of(time: str) -> float:
    """UNIX seconds of a time in ISO 8601."""
    return datetime.fromisoformat(time).timestamp()
