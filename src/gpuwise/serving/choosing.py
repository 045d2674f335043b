"""choose: the cheapest of many kinds of instance, where the queue of only a few of them is simulated to the end.

Branch and bound: each kind has bounds of the rate that one instance serves, so a floor and a ceiling of its price. The bounds
begin in closed form, and each simulated load narrows them. A kind whose floor is above the ceilings of others, at the rate and
at every other one that counts, is looked at no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuwise.serving.fleets import Fleet, least_usd_per_hour
from gpuwise.serving.rows import MOST_SHARE
from gpuwise.serving.schedule import CONSTANT, FleetSchedule


@dataclass(eq=False)
class Contender:
    """A kind of instance that may be among the cheapest.

    Attributes:
        device: devices of one instance, as on the command line.
        usd_per_hour: of one instance.
        high: its saturation rate, at most.
        narrower: starts the simulations: ever narrower bounds of that rate, the last pair equal, (0, 0) where it serves none.
        larger: what is considered in its place where it serves none; None (default) for nothing.
        schedule: when how many of it run; all the time as many by default.
        share: of its saturation rate that one instance is given; MOST_SHARE by default.
        low: its saturation rate, at least.
    """

    device: str
    usd_per_hour: float
    high: float
    narrower: Callable[[], Iterator[tuple[float, float]]]
    larger: Contender | None = None
    schedule: FleetSchedule = CONSTANT
    share: float = MOST_SHARE
    low: float = field(default=0.0, init=False)
    _bounds: Iterator[tuple[float, float]] | None = field(default=None, init=False)

    @property
    def is_exact(self) -> bool:
        """Whether the rate is no longer between bounds."""
        return self.low == self.high

    @property
    def is_simulated(self) -> bool:
        """Whether any load was."""
        return self._bounds is not None

    @property
    def floor(self) -> Fleet:
        """Costs no more than this kind of instance."""
        return Fleet(self.device, self.usd_per_hour, self.share * self.high, self.schedule)

    @property
    def ceiling(self) -> Fleet | None:
        """Costs no less than it; None while it may serve no rate."""
        return Fleet(self.device, self.usd_per_hour, self.share * self.low, self.schedule) if self.low else None

    def narrow(self) -> None:
        """Simulates one more load."""
        self._bounds = self._bounds or self.narrower()
        self.low, self.high = next(self._bounds)


@dataclass(frozen=True)
class Choice:
    """What choose returns.

    Attributes:
        exact: kinds of instance whose rates are exact, cheapest first.
        fails: those that serve no rate.
        dearer: the others.
    """

    exact: tuple[Contender, ...]
    fails: tuple[Contender, ...]
    dearer: tuple[Contender, ...]


def choose(contenders: Sequence[Contender], *, rate_per_s: float, up_to: float | None, count: int) -> Choice:
    """Makes exact the `count` cheapest kinds of instance at a rate, and each that is cheapest at any rate to `up_to`; None
    for at that rate alone. In a closed loop a rate is a number of users."""
    waiting = list(contenders)
    exact, fails, dearer = list[Contender](), list[Contender](), list[Contender]()
    while waiting:
        best = min(waiting, key=lambda each: (each.floor.usd_per_hour_at(rate_per_s), each.usd_per_hour))
        waiting.remove(best)
        others = [each.ceiling for each in (*waiting, *exact, *dearer) if each.ceiling is not None]
        # Ceilings only fall, so what does not matter now never will.
        if not _may_matter(best.floor, others, rate_per_s, up_to, count):
            dearer.append(best)
            continue
        best.narrow()
        if not best.is_exact:
            waiting.append(best)
        elif best.high:
            exact.append(best)
        else:
            fails.append(best)
            waiting += [] if best.larger is None else [best.larger]
    exact.sort(key=lambda each: each.floor.usd_per_hour_at(rate_per_s))
    return Choice(tuple(exact), tuple(fails), tuple(dearer))


def _may_matter(floor: Fleet, others: Sequence[Fleet], rate_per_s: float, up_to: float | None, count: int) -> bool:
    usd_per_hour = floor.usd_per_hour_at(rate_per_s)
    if sum(fleet.usd_per_hour_at(rate_per_s) < usd_per_hour for fleet in others) < count:
        return True
    if up_to is None:
        return False
    # Prices rise with the rate, so a fleet is best against others where it is just full.
    rates = floor.steps(up_to)
    return bool(np.any(floor.usd_at_each(rates) < least_usd_per_hour(others, rates)))
