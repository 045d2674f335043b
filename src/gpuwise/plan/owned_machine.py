"""OwnedMachine: a machine of the user's in the results of `plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.plan.break_even import BreakEven
from gpuwise.plan.time_and_money import TimeAndMoney, describe


@dataclass(frozen=True)
class OwnedMachine:
    """A machine of the user: one named with --own, or this one.

    Attributes:
        offer: the machine as an offer.
        device: its chip.
        count: number of devices.
        rank: rank of its plan in the table; None without a plan there.
        reason_note: why it has no plan in the table; None with one.
        hours: calendar time of the run on it; None where it cannot train the job.
        usd: cost of the run on it; None where it cannot train the job.
        purchase_usd: approximate purchase price; None for this machine, or where no price is known.
        break_even_months: months of uninterrupted work after which buying has cost less than renting, resale not counted;
            None where that never happens or is unknown.
        rental: the rental it is compared with, in words; "" where nothing is compared.
        resale_usd: what the machine brings at the end of its lifetime; None where no purchase price is known.
        lifetime_years: until then.
        break_even: against every rental of the table, when buying wins.
        break_even_offers: the same against every rental inside budget and deadline, in the order of the ranking.
    """

    offer: Offer
    device: str
    count: float
    rank: int | None = None
    reason_note: Note | None = None
    hours: float | None = None
    usd: float | None = None
    purchase_usd: float | None = None
    break_even_months: float | None = None
    rental: str = ""
    resale_usd: float | None = None
    lifetime_years: float | None = None
    break_even: tuple[BreakEven, ...] = ()
    break_even_offers: tuple[BreakEven, ...] = ()

    @property
    def reason(self) -> str:
        """The reason as a sentence; empty for a machine in the table."""
        return "" if self.reason_note is None else self.reason_note.text

    def bought(self, purchase_usd: float, break_even_months: float | None, rental: TimeAndMoney) -> OwnedMachine:
        """A copy with the purchase price and the break-even time."""
        return replace(self, purchase_usd=purchase_usd, break_even_months=break_even_months, rental=describe(rental))

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, one entry of `at_hand`."""
        return {
            "device": self.device,
            "count": self.count,
            "provider": self.offer.provider,
            "instance": self.offer.instance,
            "rank": self.rank,
            "reason": self.reason or None,
            "reason_note": None if self.reason_note is None else self.reason_note.to_dict(),
            "hours": self.hours,
            "usd": self.usd,
            "purchase_usd": self.purchase_usd,
            "break_even_months": self.break_even_months,
            "rental": self.rental or None,
            "resale_usd": self.resale_usd,
            "lifetime_years": self.lifetime_years,
            "break_even": [row.to_dict() for row in self.break_even],
            "break_even_offers": [row.to_dict() for row in self.break_even_offers],
        }
