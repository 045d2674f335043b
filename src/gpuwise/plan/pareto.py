"""The Pareto front of plans: those that no other plan beats in time, money and energy together."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.hardware.types import Offer

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class ParetoPoint:
    """A plan on the front.

    Attributes:
        offer: the rented or used machine.
        device: its chip.
        count: number of devices.
        hours: expected calendar time of the run.
        usd: expected cost.
        energy_kwh: energy of the devices; None where no power is known.
        inside: whether it keeps the budget and the deadline as expected.
        chance: probability to keep them.
        rank: rank of the plan in the table; None outside of it.
    """

    offer: Offer
    device: str
    count: float
    hours: float
    usd: float
    energy_kwh: float | None
    inside: bool
    chance: float
    rank: int | None = None

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, one entry of `pareto`."""
        return {
            "device": self.device,
            "count": self.count,
            "provider": self.offer.provider,
            "instance": self.offer.instance,
            "region": self.offer.region,
            "terms": self.offer.terms,
            "hours": self.hours,
            "usd": self.usd,
            "energy_kwh": self.energy_kwh,
            "inside": self.inside,
            "chance": self.chance,
            "rank": self.rank,
        }


@dataclass(frozen=True)
class ParetoFront:
    """The front among all plans that could be used, inside the limits or not, and the limits.

    Attributes:
        job: name of the job.
        points: the plans on the front, fastest first.
        others: (hours, usd) of the plans that are beaten.
        deadline_h, budget_usd: the limits; None without.
    """

    job: str
    points: tuple[ParetoPoint, ...]
    others: tuple[tuple[float, float], ...]
    deadline_h: float | None = None
    budget_usd: float | None = None
