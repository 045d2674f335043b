"""The calendar time and money of one training run, and the probability to finish before a deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.plan.economics.bills import Bills, TermsColumns, bills
from gpuwise.plan.economics.interruptions import Array
from gpuwise.plan.economics.terms import Z_90, Bill, Terms


@dataclass(frozen=True)
class Outcome:
    """A bill, the 90 % intervals of its money and calendar time, and the probability to finish before the deadline."""

    bill: Bill
    usd: Interval
    calendar_s: Interval
    finish_probability: float


@lru_cache(maxsize=4096)  # the same runs are billed again whenever a limit changes
def bill(work_s: float, terms: Terms, *, interval_s: float | None = None) -> Bill:
    """The expected bill of work_s seconds of training steps under these terms.

    Arguments:
        interval_s: work between two checkpoints; None (default) takes the best.
    """
    interval = None if interval_s is None else np.array([interval_s])
    return _row(bills(np.array([float(work_s)]), TermsColumns.of([terms]), interval_s=interval), 0)


def outcome(work_s: Interval, terms: Terms, *, deadline_s: float | None) -> Outcome:
    """The expected bill, its interval and the probability to finish; see `outcomes`."""
    return outcomes([work_s], [terms], deadline_s=deadline_s)[0]


def outcomes(works_s: Sequence[Interval], terms: Sequence[Terms], *, deadline_s: float | None) -> list[Outcome]:
    """The expected bills of many runs, their intervals and probabilities to finish.

    Model: calendar time is lognormal around the expected one. Its spread joins the forecast's 90 % interval with the variance
    of the time lost to Poisson interruptions (half an interval of work each, uniformly spread, and a restart).
    """
    if not terms:
        return []
    columns = TermsColumns.of(terms)
    works = np.array([(each.value, each.low, each.high) for each in works_s]).T
    expected, low, high = bills(works.reshape(-1), columns.repeated(3)).split(3)
    chance = _finish_probability(expected, low, high, columns, deadline_s)
    usd = np.stack([expected.usd, low.usd, high.usd], axis=1).tolist()
    calendar_s = np.stack([expected.calendar_s, low.calendar_s, high.calendar_s], axis=1).tolist()
    return [
        Outcome(_row(expected, row), Interval(*usd[row]), Interval(*calendar_s[row]), float(chance[row]))
        for row in range(len(terms))
    ]


def at_price(outcome: Outcome, listed_usd: float, usd_per_hour: Interval) -> Outcome:
    """An outcome at the listed price an hour, at the likely price instead; the intervals of time and price are independent
    factors. Storage and transfer cost the same."""
    if listed_usd <= 0 or not math.isfinite(outcome.bill.usd):
        return outcome
    ratio, data_usd, usd = usd_per_hour.value / listed_usd, outcome.bill.data_usd, outcome.usd
    machine = Interval(usd.value - data_usd, usd.low - data_usd, usd.high - data_usd).scaled(ratio)
    machine = _product(machine, usd_per_hour)
    usd = Interval(machine.value + data_usd, machine.low + data_usd, machine.high + data_usd)
    return replace(outcome, bill=replace(outcome.bill, usd=usd.value), usd=usd)


def _row(many: Bills, row: int) -> Bill:
    interval_s = float(many.interval_s[row])
    return Bill(
        float(many.machine_s[row]),
        float(many.calendar_s[row]),
        float(many.usd[row]),
        None if math.isnan(interval_s) else interval_s,
        float(many.interruptions[row]),
        float(many.data_usd[row]),
    )


def _finish_probability(expected: Bills, low: Bills, high: Bills, terms: TermsColumns, deadline_s: float | None) -> Array:
    """The probability to finish; see `outcomes`."""
    ends = np.isfinite(expected.calendar_s)
    if deadline_s is None:
        return ends.astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.log(high.calendar_s / low.calendar_s) / (2 * Z_90)
        sigma = np.where(np.isfinite(high.calendar_s), spread, 1.0)
        lost_s, restart_s = np.nan_to_num(expected.interval_s) + terms.how.save_s, terms.how.restart_s
        square = lost_s**2 / 3 + lost_s * restart_s + restart_s**2
        sigma = np.sqrt(sigma**2 + np.log1p(expected.interruptions * square / expected.calendar_s**2))
        z = np.log(deadline_s / expected.calendar_s) / np.maximum(sigma, 1e-9)
    return np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) if end else 0.0 for each, end in zip(z, ends, strict=True)])


def _product(usd: Interval, price: Interval) -> Interval:
    """The interval of money at an uncertain price: widths of both in logarithms, added as squares."""
    if min(usd.low, price.low) <= 0 or not math.isfinite(usd.high):
        return usd
    down = math.hypot(math.log(usd.value / usd.low), math.log(price.value / price.low))
    up = math.hypot(math.log(usd.high / usd.value), math.log(price.high / price.value))
    return Interval(usd.value, usd.value * math.exp(-down), usd.value * math.exp(up))
