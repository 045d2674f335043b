"""When buying a machine beats renting another."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class BreakEven:
    """When buying a machine beats one rental.

    Attributes:
        rank: of the rental's plan.
        rental: the rental in words.
        usd: cost of the run on it.
        own_usd: cost of the run on the bought machine without its purchase.
        hours_a_week: of work on the bought machine, over its lifetime, from which on buying is cheaper; None: never.
    """

    rank: int
    rental: str
    usd: float
    own_usd: float
    hours_a_week: float | None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)
