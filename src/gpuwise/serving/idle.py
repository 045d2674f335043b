"""Scale to zero: an instance stops when it has been idle for a while, and the next request starts it again.

Requests arrive independently at a rate r and take s seconds each; the instance stops D seconds after its last request ended,
and starts within T seconds. While it is on, it is the busy period of an M/D/infinity queue whose service is s + D: it lasts
(exp(r (s + D)) - 1) / r on average, and exp(r (s + D)) - 1 requests join it (L. Takacs, "Introduction to the Theory of Queues",
1962). Before that, the first request and r T others wait for the start; after it nothing is on for 1 / r on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1

from gpuwise.serving.fleets import HOURS_A_MONTH

_CLOSE = 1e-9  # of a rate that is searched for
MOST_EXPONENT = 600.0  # beyond it an instance stops less than once in the age of the universe


@dataclass(frozen=True)
class OnOff:
    """One instance that stops when it is idle, at a constant rate.

    Attributes:
        paid: share of the time in which it starts, or is on.
        cold: share of the requests that meet a cold start.
        wait_s: mean wait of those; the first of each start waits for all of it.
        starts_per_s: how often it starts.
    """

    paid: float
    cold: float
    wait_s: float
    starts_per_s: float


@dataclass(frozen=True)
class ScaledToZero:
    """A fleet whose last instance stops when it is idle, against one that is always on.

    Attributes:
        busy_s: how long a request takes.
        idle_s: how long an instance is idle before it stops.
        start_s: its cold start.
        cold_share: share of the requests of a month that meet a cold start.
        wait_s: their mean wait; None where there are none.
        starts_per_month: how often an instance starts.
        usd_per_month: dollars a month; None without a price.
        always_on_usd_per_month: the same where it is always on.
        break_even_idle_s: idle time from which a stop has saved more than the start that follows it costs.
        stops: whether an instance stops at all: no other runs, and it is idle long enough once a year at least.
    """

    busy_s: float
    idle_s: float
    start_s: float
    cold_share: float
    wait_s: float | None
    starts_per_month: float
    usd_per_month: float | None
    always_on_usd_per_month: float | None
    break_even_idle_s: float
    stops: bool


def on_off(rate_per_s: float, *, busy_s: float, idle_s: float, start_s: float) -> OnOff:
    """One instance at a rate. busy_s: how long a request takes; idle_s: how long it then stays on."""
    if not rate_per_s:
        return OnOff(0.0, 0.0, 0.0, 0.0)
    exponent = rate_per_s * (busy_s + idle_s)
    if exponent > MOST_EXPONENT:
        return OnOff(1.0, 0.0, 0.0, 0.0)
    joining = expm1(exponent)
    first = 1 + rate_per_s * start_s
    off_s, on_s = 1 / rate_per_s, start_s + joining / rate_per_s
    cycle_s = off_s + on_s
    wait_s = (start_s + rate_per_s * start_s * start_s / 2) / first
    return OnOff(on_s / cycle_s, first / (first + joining), wait_s, 1 / cycle_s)


def cheaper_from_per_s(
    usd_per_request: float, *, usd_per_hour: float, highest_per_s: float, busy_s: float, idle_s: float, start_s: float
) -> float:
    """The rate from which one instance that stops costs less than so much a request; 0 where it does at every rate.

    It is paid `start_s + busy_s + idle_s` for a request that comes alone, and less a request the more of them share the time.

    highest_per_s: a rate at which it costs less.
    """
    most_paid_s = 3600 * usd_per_request / usd_per_hour
    if start_s + busy_s + idle_s <= most_paid_s:
        return 0.0
    low, high = 0.0, highest_per_s
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        paid = on_off(middle, busy_s=busy_s, idle_s=idle_s, start_s=start_s).paid
        low, high = (low, middle) if paid <= most_paid_s * middle else (middle, high)
    return high


def scaled_to_zero(
    parts: Sequence[tuple[float, int]],
    *,
    busy_s: float,
    idle_s: float,
    start_s: float,
    usd_per_hour: float | None,
    always_on_usd_per_hour: float | None,
) -> ScaledToZero:
    """A fleet over the equal parts of a day.

    Arguments:
        parts: rate of each, and how many instances it takes; only a single one stops.
        busy_s: how long a request takes.
        usd_per_hour: of one instance; None without a price.
        always_on_usd_per_hour: of the fleet where nothing stops.
    """
    paid = cold = waits = starts = requests = 0.0
    for rate, count in parts:
        part = on_off(rate, busy_s=busy_s, idle_s=idle_s, start_s=start_s) if count == 1 else OnOff(float(count), 0.0, 0.0, 0.0)
        paid += part.paid / len(parts)
        starts += part.starts_per_s / len(parts)
        requests += rate
        cold += part.cold * rate
        waits += part.cold * rate * part.wait_s
    month_s = 3600 * HOURS_A_MONTH
    return ScaledToZero(
        busy_s,
        idle_s,
        start_s,
        cold_share=cold / requests if requests else 0.0,
        wait_s=waits / cold if cold else None,
        starts_per_month=starts * month_s,
        usd_per_month=None if usd_per_hour is None else paid * usd_per_hour * HOURS_A_MONTH,
        always_on_usd_per_month=None if always_on_usd_per_hour is None else always_on_usd_per_hour * HOURS_A_MONTH,
        break_even_idle_s=start_s,
        stops=starts * month_s > 1 / 12,
    )
