"""Option: one way to train the job, with its time and money but without reasons. `choose` ranks thousands of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.prices import is_outlier
from gpuwise.hardware.types import Offer
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.economics.bill import Outcome
from gpuwise.plan.economics.likely_price import LikelyPrice
from gpuwise.plan.economics.terms import HOUR_S, Z_90, Terms
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
        chance: probability to keep the deadline and the budget; 1 (default) without limits.
        finish_probability: probability to keep the deadline; 1 (default) without one.
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
    chance: float = 1.0
    finish_probability: float = 1.0

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
    def expected_usd(self) -> float:
        """Expected cost in dollars."""
        return self.outcome.usd.value

    @property
    def usd_at_listed_price(self) -> float:
        """Cost in dollars if the listed price holds."""
        bill = self.outcome.bill
        return (bill.usd - bill.data_usd) / self.price_ratio + bill.data_usd

    @property
    def price_ratio(self) -> float:
        """The likely price over the listed one."""
        return self.price.usd_per_hour.value / self.price.listed_usd if self.price.listed_usd else 1.0

    @property
    def price_outlier(self) -> bool:
        """Whether the price is suspiciously far below the chip's median."""
        return is_outlier(self.price_of_median)

    @property
    def energy_j(self) -> float | None:
        """Energy of the run on all devices, with work that interruptions undo; None where no power is known."""
        if self.estimate.energy_j is None:
            return None
        work_s = self.estimate.step_time_s.value * self.steps
        again = max(1.0, (self.outcome.bill.machine_s - self.terms.setup_s) / work_s)
        return self.estimate.energy_j * self.steps * again

    @property
    def memory_bytes(self) -> float:
        """Memory that the step takes on all devices together."""
        return self.estimate.device_bytes * self.item.cluster.devices

    @property
    def usd_per_sample(self) -> float:
        """Price of one more sample: machine time while it trains, without setup, minimum or the rest of a reserved term."""
        busy_s = self.outcome.bill.machine_s - self.terms.setup_s
        usd_per_hour = self.item.rented * self.price.usd_per_hour.value
        return busy_s / HOUR_S * usd_per_hour / (self.steps * self.estimate.strategy.global_batch)

    @property
    def log_hours(self) -> float:
        """Standard deviation of the logarithm of the calendar time: the forecast's, and that of interruptions.

        A Poisson number of interruptions, each of which loses a uniform part of an interval, and a restart.
        """
        bill, calendar_s, terms = self.outcome.bill, self.outcome.calendar_s, self.terms
        if not math.isfinite(calendar_s.high):
            return 1.0
        sigma = math.log(calendar_s.high / calendar_s.low) / (2 * Z_90)
        if bill.checkpoint_interval_s and bill.interruptions:
            lost_s, restart_s = bill.checkpoint_interval_s + terms.save_s, terms.restart_s
            square = lost_s**2 / 3 + lost_s * restart_s + restart_s**2
            sigma = math.sqrt(sigma**2 + math.log1p(bill.interruptions * square / bill.calendar_s**2))
        return sigma

    @property
    def log_price(self) -> float:
        """Standard deviation of the logarithm of the price."""
        price = self.price.usd_per_hour
        return math.log(price.high / price.low) / (2 * Z_90) if price.low > 0 else 0.0

    @property
    def usd_follows(self) -> float:
        """Whether the cost follows the time: 1, but 0 for a term that is paid in full."""
        return 0.0 if self.offer.terms.startswith("reserved") else 1.0
