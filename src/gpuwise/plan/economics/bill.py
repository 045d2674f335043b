"""The calendar time and money of a training run, and the probability to finish before a deadline.

Every constant that is a guess is named in the assumptions of the result, with the flag that changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.plan.economics.free import free_bill
from gpuwise.plan.economics.spot import spot_bill
from gpuwise.plan.economics.terms import HOUR_S, YEAR_S, Z_90, Bill, Terms


@dataclass(frozen=True)
class Outcome:
    """A bill, the 90 % intervals of its money and calendar time, and the probability to finish before the deadline."""

    bill: Bill
    usd: Interval
    calendar_s: Interval
    finish_probability: float


def bill(work_s: float, terms: Terms) -> Bill:
    """The expected bill of work_s seconds of training steps under these terms."""
    if terms.kind == "spot":
        return spot_bill(work_s, terms)
    if terms.kind == "free":
        return free_bill(work_s, terms)
    machine_s = work_s + terms.setup_s
    if terms.kind.startswith("reserved"):
        years = 3 if terms.kind == "reserved-3y" else 1
        committed_s = math.ceil(machine_s / (years * YEAR_S)) * years * YEAR_S  # a reservation is paid in full
        return Bill(machine_s, machine_s, committed_s / HOUR_S * terms.usd_per_hour)
    return Bill(machine_s, machine_s, terms.usd(machine_s))


def outcome(work_s: Interval, terms: Terms, *, deadline_s: float | None, usd_per_hour: Interval | None = None) -> Outcome:
    """The expected bill, its interval and the probability to finish.

    Arguments:
        usd_per_hour: the likely price with its interval; None where the price of the terms holds.

    Model: the intervals of time and of the price are independent factors. Calendar time is lognormal around the expected
    one. Its spread joins the forecast's 90 % interval with the variance of the time lost to Poisson interruptions (half an
    interval of work each, uniformly spread, and a restart).
    """
    expected = bill(work_s.value, terms)
    low, high = bill(work_s.low, terms), bill(work_s.high, terms)
    usd, calendar_s = (
        Interval(getattr(expected, name), getattr(low, name), getattr(high, name)) for name in ("usd", "calendar_s")
    )
    if usd_per_hour is not None:
        usd = _product(usd, usd_per_hour)
    if not math.isfinite(expected.calendar_s):
        return Outcome(expected, usd, calendar_s, 0.0)
    probability = 1.0
    if deadline_s is not None:
        sigma = math.log(high.calendar_s / low.calendar_s) / (2 * Z_90) if math.isfinite(high.calendar_s) else 1.0
        if expected.checkpoint_interval_s and expected.interruptions:
            lost_s, restart_s = expected.checkpoint_interval_s + terms.save_s, terms.restart_s
            square = lost_s**2 / 3 + lost_s * restart_s + restart_s**2
            sigma = math.sqrt(sigma**2 + math.log1p(expected.interruptions * square / expected.calendar_s**2))
        probability = _normal_cdf(math.log(deadline_s / expected.calendar_s) / max(sigma, 1e-9))
    return Outcome(expected, usd, calendar_s, probability)


def _product(usd: Interval, price: Interval) -> Interval:
    """The interval of money at an uncertain price: widths of both in logarithms, added as squares."""
    if min(usd.low, price.low) <= 0 or not math.isfinite(usd.high):
        return usd
    down = math.hypot(math.log(usd.value / usd.low), math.log(price.value / price.low))
    up = math.hypot(math.log(usd.high / usd.value), math.log(price.high / price.value))
    return Interval(usd.value, usd.value * math.exp(-down), usd.value * math.exp(up))


def _normal_cdf(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
