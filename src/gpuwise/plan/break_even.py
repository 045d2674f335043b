"""When buying a machine beats renting: against the plans of the table, every offer, and the cheapest offer of each chip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from gpuwise.plan.time_and_money import TimeAndMoney


@dataclass(frozen=True)
class BreakEven:
    """When buying a machine beats one rental.

    Attributes:
        rank: of the rental's plan; None for one that is not in the table.
        rental: the rental in words.
        usd: cost of the run on it.
        own_usd: cost of the run on the bought machine without its purchase.
        hours_a_week: of work on the bought machine, over its lifetime, from which on buying is cheaper; None: never.
        device, count: chip of the rental, and how many.
        provider, instance, region, terms: of its offer.
        hours: calendar time of the run on it.
    """

    rank: int | None
    rental: str
    usd: float
    own_usd: float
    hours_a_week: float | None
    device: str
    count: float
    provider: str
    instance: str
    region: str
    terms: str
    hours: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def against(
    rentals: Iterable[TimeAndMoney],
    *,
    own_usd: float,
    hours_a_week: Callable[[float], float | None],
    ranks: Callable[[TimeAndMoney], int | None],
) -> tuple[BreakEven, ...]:
    """When buying beats each rental, in their order.

    Arguments:
        own_usd: cost of the run on the bought machine without its purchase.
        hours_a_week: of work from which on buying is cheaper than rentals at so many dollars a run.
        ranks: of a rental in the table; None for one that is not there.
    """
    return tuple(
        BreakEven(
            ranks(rental),
            f"{rental.count:g} x {rental.device} at {rental.offer.provider} ({rental.offer.terms})",
            rental.usd.value,
            own_usd,
            hours_a_week(rental.usd.value),
            rental.device,
            rental.count,
            rental.offer.provider,
            rental.offer.instance,
            rental.offer.region,
            rental.offer.terms,
            rental.hours,
        )
        for rental in rentals
    )


def cheapest_of_each_chip(rows: Sequence[BreakEven]) -> list[BreakEven]:
    """The rental with the cheapest run of each chip, cheapest first."""
    cheapest: dict[str, BreakEven] = {}
    for row in sorted(rows, key=lambda row: (row.usd, row.hours)):
        cheapest.setdefault(row.device, row)
    return list(cheapest.values())
