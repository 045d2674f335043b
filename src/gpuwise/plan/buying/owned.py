"""The user's own machines: their ranks, why one is not ranked, and the time until a purchase pays off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwise.hardware.types import Chip, Offer
from gpuwise.notes import Note
from gpuwise.plan.economics.owned import break_even_months
from gpuwise.plan.time_and_money import TimeAndMoney
from gpuwise.plan.types import OwnedMachine, Plan

OWN = "own"  # the provider of what --own names; this machine is "here"
_RENTED = ("on-demand", "spot")


def owned_machines(
    reasons: Mapping[Offer, Note], plans: Sequence[TimeAndMoney], ranked: Sequence[Plan], chips: Mapping[str, Chip]
) -> tuple[OwnedMachine, ...]:
    """All of the user's own machines, ranked or not.

    Arguments:
        reasons: why machines are not ranked, by offer.
        plans: all plans, inside budget and deadline or not.
        ranked: the plans of the table.
    """
    ranks = {plan.offer: plan.rank for plan in ranked}
    could = {plan.offer: plan for plan in plans if plan.offer.terms == "owned"}
    rental = _cheapest_rental(ranked) or _cheapest_rental(plans)
    machines = dict.fromkeys([*could, *reasons])
    return tuple(
        _one(offer, could.get(offer), ranks.get(offer), reasons.get(offer), rental, chips.get(offer.chip_id))
        for offer in machines
    )


def _one(
    offer: Offer,
    plan: TimeAndMoney | None,
    rank: int | None,
    reason: Note | None,
    rental: TimeAndMoney | None,
    chip: Chip | None,
) -> OwnedMachine:
    machine = OwnedMachine(
        offer,
        offer.chip_id,
        offer.devices,
        rank,
        None if rank is not None else reason,
        None if plan is None else plan.hours,
        None if plan is None else plan.usd.value,
    )
    each_usd = None if chip is None else chip.street_price_usd or chip.msrp_usd
    if offer.provider != OWN or plan is None or rental is None or each_usd is None:
        return machine
    purchase_usd = each_usd * offer.devices
    months = break_even_months(purchase_usd, own_usd=plan.usd.value, own_hours=plan.hours, rental_usd=rental.usd.value)
    return machine.bought(purchase_usd, months, rental)


def _cheapest_rental(plans: Sequence[TimeAndMoney]) -> TimeAndMoney | None:
    """The rental to compare a purchase with.

    It is not free and its price is not stale. Plans that `gpuwise train` can run come first, then prices that are no outlier,
    then the cheapest.
    """
    rented = [plan for plan in plans if plan.offer.terms in _RENTED and not plan.offer.stale]
    return min(rented, key=lambda plan: (bool(plan.train_obstacle), plan.price_outlier, plan.usd.value), default=None)
