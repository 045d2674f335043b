"""The probability that a run keeps its deadline and its budget."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gpuwise.plan.ranking.columns import FloatArray

# Prices at the middles of equally likely parts, in standard deviations: the average over them is the integral over the price.
# A budget that cuts through a part is off by at most half of it.
_PARTS = 64
_PRICES = np.array([NormalDist().inv_cdf((part + 0.5) / _PARTS) for part in range(_PARTS)])


@dataclass(frozen=True, eq=False)
class Spreads:
    """The uncertainty of time and money of many plans, one row each. Logarithms are normal.

    Attributes:
        hours, usd: expected calendar time and cost.
        log_hours: standard deviation of the logarithm of the time: the forecast's, and that of interruptions.
        log_price: standard deviation of the logarithm of the price.
        usd_follows: by how much the logarithm of the cost grows with that of the time: 1 for a rent by the second, 0 for a
            term paid in full.
    """

    hours: FloatArray
    usd: FloatArray
    log_hours: FloatArray
    log_price: FloatArray
    usd_follows: FloatArray


def chance_inside(spreads: Spreads, *, deadline_h: float | None, budget_usd: float | None) -> FloatArray:
    """The probability by row that the run ends before the deadline and costs no more than the budget.

    The time T and the price P are lognormal and independent, and the cost follows both: C = c P (T/t)^k with the expected
    cost c and time t. Given the price, both limits are limits of T: the lower one counts, and its probability is averaged over
    the price.
    """
    rows = len(spreads.hours)
    sigma = np.maximum(spreads.log_hours, 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        in_time = np.full(rows, np.inf) if deadline_h is None else np.log(deadline_h / spreads.hours) / sigma
        if budget_usd is None:
            return normal_cdf(in_time)
        room = np.log(budget_usd / spreads.usd)  # infinite for what costs nothing
        follows = spreads.usd_follows * sigma
        left = room[:, None] - spreads.log_price[:, None] * _PRICES
        inside = np.where(
            follows[:, None] > 1e-9, left / np.maximum(follows, 1e-9)[:, None], np.where(left >= 0, np.inf, -np.inf)
        )
    free = spreads.usd <= 0
    inside[free] = np.inf
    return np.asarray(normal_cdf(np.minimum(in_time[:, None], inside)).mean(axis=1))


def normal_cdf(z: FloatArray) -> FloatArray:
    """The standard normal distribution function, off by less than 1e-7.

    Source: M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions" (1964), 26.2.17.
    """
    x = np.abs(z)
    t = 1 / (1 + 0.2316419 * x)
    tail = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = tail * np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    return np.where(z < 0, tail, 1 - tail)
