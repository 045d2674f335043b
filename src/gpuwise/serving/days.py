"""DayCurve: how the rate of requests follows the hour of the day."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

HOURS = 24
# Assumed shapes, in the form that parse_day reads: people at work in one time zone, and people at home.
NAMED = {
    "office": "0:0.1,7:0.5,9:2.2,12:1.7,13:2.2,17:1.2,19:0.5,22:0.2",
    "evening": "0:0.6,2:0.2,7:0.7,12:1.1,17:1.5,20:2.2,23:1.2",
}
_WAYS = ("write the relative rate from an hour on: --day 0:0.2,8:1,12:1.5,20:0.8", f"--day {', --day '.join(NAMED)}")


@dataclass(frozen=True)
class DayCurve:
    """A day of 24 hours.

    Attributes:
        name: as the user wrote it.
        multiples: rate of each hour over the mean of the day, from midnight on.
    """

    name: str
    multiples: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.multiples) != HOURS or min(self.multiples) < 0 or not sum(self.multiples):
            raise InputError("A day has the rates of 24 hours, 0 or more and not all of them 0.", _WAYS)

    @property
    def peak(self) -> float:
        """The rate of the busiest hour over the mean."""
        return max(self.multiples)

    @property
    def peak_hour(self) -> int:
        """The first hour with that rate."""
        return self.multiples.index(self.peak)


def day_of(name: str, rates: NDArray[np.float64]) -> DayCurve:
    """The curve of 24 rates of which only the ratios count. Raises InputError where all are 0 or one is below."""
    mean = float(np.mean(rates)) if len(rates) else 0.0
    return DayCurve(name, tuple((rates / mean).tolist()) if mean > 0 else ())


def parse_day(text: str) -> DayCurve:
    """The curve of "0:0.2,8:1,12:1.5,20:0.8" or of a name of NAMED; InputError for anything else.

    Each rate is that from its hour until the next one that is named; the last goes on past midnight.
    """
    name = text.strip()
    rates = dict(_part(part) for part in NAMED.get(name, name).split(","))
    if len(rates) < NAMED.get(name, name).count(",") + 1:
        raise InputError(f"an hour stands twice in the day {text!r}.", _WAYS)
    hours, last = np.zeros(HOURS), rates[max(rates)]
    for hour in range(HOURS):
        last = rates.get(hour, last)
        hours[hour] = last
    return day_of(name, hours)


def _part(part: str) -> tuple[int, float]:
    hour, colon, rate = (word.strip() for word in part.partition(":"))
    try:
        value = float(rate)
        number = int(hour)
    except ValueError:
        value, number = -1.0, -1
    if not colon or not 0 <= number < HOURS or not isfinite(value) or value < 0 or value > 1e6:
        raise InputError(f"{part.strip()!r} is no hour from 0 to 23 with a relative rate.", _WAYS)
    return number, value
