"""Fleets of equal instances, and which of them is cheapest at which rate: replicas are whole, so the answer changes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gpuwise.serving.schedule import CONSTANT, FleetSchedule

HOURS_A_MONTH = 730.5  # 365.25 days of 24 hours, over 12
MOST_STEPS = 1000  # replicas of a fleet whose every step is looked at; one more of a thousand moves its price by a thousandth
_ROUNDING = 1e-9  # of a rate that is a whole number of replicas


@dataclass(frozen=True)
class Fleet:
    """Equal instances side by side, as many as a rate takes.

    Attributes:
        device: devices of one instance, as on the command line.
        usd_per_hour: of one instance.
        takes: requests a second that one instance is given at most; above 0.
        schedule: when it has how many instances; all the time as many by default. Rates are means over it.
    """

    device: str
    usd_per_hour: float
    takes: float
    schedule: FleetSchedule = CONSTANT

    def replicas(self, rate_per_s: float) -> int:
        """Instances that a rate takes, at least one; where their number changes over the day, the most."""
        if self.schedule is CONSTANT:
            return max(1, ceil(rate_per_s / self.takes - _ROUNDING))
        return int(self.schedule.counts(rate_per_s, self.takes).max())

    def usd_per_hour_at(self, rate_per_s: float) -> float:
        """Dollars an hour at a rate."""
        if self.schedule is CONSTANT:
            return self.usd_per_hour * self.replicas(rate_per_s)
        return float(self.usd_at_each(np.array([rate_per_s]))[0])

    def steps(self, up_to: float) -> NDArray[np.float64]:
        """The rates up to `up_to` beyond which one more instance is needed, and `up_to`."""
        return self.schedule.steps(self.takes, up_to, most=MOST_STEPS)

    def usd_at_each(self, rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Dollars an hour at each of some rates."""
        return self.usd_per_hour * self.schedule.paid(rates, self.takes)


@dataclass(frozen=True)
class RateRange:
    """Rates at which one kind of instance is the cheapest.

    Attributes:
        above_per_s, up_to_per_s: the range, in requests a second, its lower end excluded.
        device: devices of one instance.
        replicas: instances at both ends.
        usd_per_month: dollars a month at both ends.
    """

    above_per_s: float
    up_to_per_s: float
    device: str
    replicas: tuple[int, int]
    usd_per_month: tuple[float, float]


def least_usd_per_hour(fleets: Sequence[Fleet], rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Dollars an hour of the cheapest fleet at each rate; infinite without fleets."""
    return np.min([np.full(len(rates), np.inf), *(fleet.usd_at_each(rates) for fleet in fleets)], axis=0)


def rate_ranges(fleets: Sequence[Fleet], *, up_to: float) -> tuple[RateRange, ...]:
    """The cheapest fleet by rate, from 0 to `up_to` requests a second; where several cost the same, the one of lower rates.

    Between two steps of any fleet all prices are constant, so one rate of each interval, its upper end, says it all.
    """
    if not fleets:
        return ()
    ends = np.unique(np.concatenate([fleet.steps(up_to) for fleet in fleets]))
    usd = np.array([fleet.usd_at_each(ends) for fleet in fleets])
    least = usd.min(axis=0)
    ranges: list[tuple[Fleet, float, float]] = []
    above = 0.0
    for index, end in enumerate(ends.tolist()):
        if ranges and usd[fleets.index(ranges[-1][0]), index] == least[index]:
            fleet, start, _ = ranges.pop()
        else:
            fleet, start = fleets[int(usd[:, index].argmin())], above
        ranges.append((fleet, start, end))
        above = end
    return tuple(_range(*each) for each in ranges)


def _range(fleet: Fleet, above: float, up_to: float) -> RateRange:
    ends = above * (1 + 2 * _ROUNDING), up_to
    first, last = (fleet.replicas(rate) for rate in ends)
    cheapest, dearest = (HOURS_A_MONTH * fleet.usd_per_hour_at(rate) for rate in ends)
    return RateRange(above, up_to, fleet.device, (first, last), (cheapest, dearest))
