"""Option: one way to train the job, with its time and money but without reasons. `choose` ranks thousands of them."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.prices import is_outlier
from gpuwise.hardware.types import Offer
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.economics.bill import Outcome
from gpuwise.plan.economics.likely_price import LikelyPrice
from gpuwise.plan.economics.terms import Terms
from gpuwise.plan.estimate import Estimate


@dataclass(frozen=True)
class Option:
    """A candidate with its best strategy, time and money.

    Attributes:
        item: the machines.
        estimate: the strategy and its step.
        terms: at the listed price.
        price: the listed and the likely price.
        outcome: the expected bill at the likely price.
        steps: number of optimizer steps.
        train_obstacle: why `gpuwise train` cannot run it; "" where it can.
        price_of_median: price divided by the chip's median on-demand price; None where that is unknown.
    """

    item: Candidate
    estimate: Estimate
    terms: Terms
    price: LikelyPrice
    outcome: Outcome
    steps: int
    train_obstacle: str
    price_of_median: float | None

    @property
    def offer(self) -> Offer:
        return self.item.offer

    @property
    def device(self) -> str:
        """The chip's id."""
        return self.item.chip.id

    @property
    def count(self) -> float:
        """Number of devices of all machines."""
        return self.item.devices

    @property
    def machines(self) -> int:
        return self.item.cluster.machines

    @property
    def hours(self) -> float:
        """Calendar time of the run."""
        return self.outcome.bill.calendar_s / 3600

    @property
    def usd(self) -> Interval:
        """Expected cost in dollars, with its 90 % interval."""
        return self.outcome.usd

    @property
    def usd_at_listed_price(self) -> float:
        """Cost in dollars if the listed price holds."""
        return self.outcome.bill.usd / self.price_ratio

    @property
    def price_ratio(self) -> float:
        """The likely price over the listed one."""
        return self.price.usd_per_hour.value / self.price.listed_usd if self.price.listed_usd else 1.0

    @property
    def price_outlier(self) -> bool:
        """Whether the price is suspiciously far below the chip's median."""
        return is_outlier(self.price_of_median)
