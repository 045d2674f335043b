"""The user's own machines: their price in a job, their ranks, why one is not ranked, and when a purchase pays off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.hosts import host_for
from gpuwise.hardware.types import Chip, Offer
from gpuwise.notes import Note
from gpuwise.notes.run import electricity_alone
from gpuwise.plan.break_even import against
from gpuwise.plan.economics.likely_price import LikelyPrice
from gpuwise.plan.economics.owned import OwnedRate, break_even_hours_a_week, break_even_months
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.owned_machine import OwnedMachine
from gpuwise.plan.time_and_money import TimeAndMoney
from gpuwise.plan.types import Plan

OWN = "own"  # the provider of what --own names; this machine is "here"
_RENTED = ("on-demand", "spot")
Timed = TypeVar("Timed", bound=TimeAndMoney)


def power_in_this_job(rate: OwnedRate, estimate: Estimate) -> float | None:
    """Watts of the chips; None where the estimate has no energy."""
    return None if estimate.energy_j is None else estimate.energy_j / estimate.step_time_s.value


def price_in_this_job(rate: OwnedRate, estimate: Estimate) -> LikelyPrice:
    """The price of an hour at the power that the job draws."""
    usd = rate.usd_per_hour(power_in_this_job(rate, estimate))
    return LikelyPrice(usd, Interval(usd, usd, usd))


def power_note(rate: OwnedRate, estimate: Estimate) -> Note:
    """What the electricity of a machine is made of."""
    chips_w = power_in_this_job(rate, estimate)
    costs, drawn_w = rate.costs, rate.assumed_w if chips_w is None else chips_w
    return electricity_alone(
        chips_w=drawn_w,
        forecast=chips_w is not None,
        host_w=costs.host_w * rate.machines,
        psu_efficiency=costs.psu_efficiency,
        pue=costs.pue,
        wall_w=costs.wall_w(drawn_w / rate.machines) * rate.machines,
        usd_per_kwh=rate.usd_per_kwh,
    )


def owned_machines(
    reasons: Mapping[Offer, Note],
    plans: Sequence[TimeAndMoney],
    ranked: Sequence[Plan],
    chips: Mapping[str, Chip],
    *,
    inside: Sequence[TimeAndMoney],
    rates: Mapping[Offer, OwnedRate],
) -> tuple[OwnedMachine, ...]:
    """All of the user's own machines, ranked or not.

    Arguments:
        reasons: why machines are not ranked, by offer.
        plans: all plans, inside budget and deadline or not.
        ranked: the plans of the table.
        inside: those inside budget and deadline; a purchase is compared with each of them.
        rates: of the user's machines.
    """
    ranks = {plan.offer: plan.rank for plan in ranked}
    could = {plan.offer: plan for plan in plans if plan.offer.terms == "owned"}
    rentals = _Rentals.of(_rentals(ranked), _rentals(inside))
    cheapest = _cheapest(rentals.of_table or _rentals(plans))
    machines = []
    for offer in dict.fromkeys([*could, *reasons]):
        plan, rank = could.get(offer), ranks.get(offer)
        machine = OwnedMachine(
            offer,
            offer.chip_id,
            offer.devices,
            rank,
            None if rank is not None else reasons.get(offer),
            None if plan is None else plan.hours,
            None if plan is None else plan.usd.value,
        )
        if plan is not None and offer.provider == OWN:
            machine = _bought(machine, plan, rentals, cheapest, chips[offer.chip_id], rates[offer])
        machines.append(machine)
    return tuple(machines)


@dataclass(frozen=True)
class _Rentals:
    """What a purchase is compared with: the rentals of the table, and all inside the limits; ranks by machines and offer."""

    of_table: Sequence[Plan]
    inside: Sequence[TimeAndMoney]
    ranks: Mapping[tuple[float, int], int]

    @classmethod
    def of(cls, of_table: Sequence[Plan], inside: Sequence[TimeAndMoney]) -> _Rentals:
        return cls(of_table, inside, {(plan.count, id(plan.offer)): plan.rank for plan in of_table})

    def rank(self, rental: TimeAndMoney) -> int | None:
        """The rank in the table; None for a rental that is not there. An offer is one object in a search."""
        return self.ranks.get((rental.count, id(rental.offer)))


def _bought(
    machine: OwnedMachine,
    plan: TimeAndMoney,
    rentals: _Rentals,
    cheapest: TimeAndMoney | None,
    chip: Chip,
    rate: OwnedRate,
) -> OwnedMachine:
    """The machine with its purchase, and when that pays off against each rental; as it is where no price is known."""
    costs = rate.costs
    if cheapest is None or (rate.share < 1 and costs.purchase_usd is not None):  # nobody buys half a machine
        return machine
    each_usd = costs.purchase_usd
    if each_usd is None:
        each_usd = purchase_price(chip, round(machine.count) // rate.machines)
    if each_usd is None:
        return machine
    purchase_usd = rate.machines * each_usd
    capital_usd_per_hour = rate.machines * rate.share * costs.capital_usd_per_hour(chip.kind)
    own_usd = plan.usd.value - capital_usd_per_hour * plan.hours
    lost_usd = costs.lost_usd(purchase_usd, chip.kind)

    def hours_a_week(rental_usd: float) -> float | None:
        return break_even_hours_a_week(
            lost_usd, own_usd=own_usd, own_hours=plan.hours, rental_usd=rental_usd, lifetime_years=costs.lifetime_years
        )

    months = break_even_months(purchase_usd, own_usd=own_usd, own_hours=plan.hours, rental_usd=cheapest.usd.value)
    return replace(
        machine.bought(purchase_usd, months, cheapest),
        resale_usd=purchase_usd - lost_usd,
        lifetime_years=costs.lifetime_years,
        break_even=against(rentals.of_table, own_usd=own_usd, hours_a_week=hours_a_week, ranks=rentals.rank),
        break_even_offers=against(rentals.inside, own_usd=own_usd, hours_a_week=hours_a_week, ranks=rentals.rank),
    )


def purchase_price(chip: Chip, count: int) -> float | None:
    """The price of the chips in shops, or else the maker's, with the cheapest computer around them; None if none is known."""
    each_usd, host = chip.street_price_usd or chip.msrp_usd, host_for(chip, count)
    if each_usd is None:
        return None
    return each_usd * count + (0.0 if host is None else host.usd)


def _rentals(plans: Sequence[Timed]) -> list[Timed]:
    """The rentals to compare a purchase with: neither free nor at a stale price."""
    return [plan for plan in plans if plan.offer.terms in _RENTED and not plan.offer.stale]


def _cheapest(rentals: Sequence[TimeAndMoney]) -> TimeAndMoney | None:
    """Of plans that `gpuwise train` can run if there is one, then of prices that are no outlier, the cheapest."""
    return min(rentals, key=lambda plan: (bool(plan.train_obstacle), plan.price_outlier, plan.usd.value), default=None)
