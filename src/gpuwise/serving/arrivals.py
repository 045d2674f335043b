"""When requests arrive: evenly at random (Poisson), in bursts, or along a day's curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

DAY_S = 86_400.0


def poisson(rate_per_s: float, *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrivals of independent users, in seconds: the gaps are exponential."""
    return np.cumsum(rng.exponential(1 / rate_per_s, count))


def bursty(rate_per_s: float, *, count: int, variation: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrivals whose gaps are gamma distributed, in seconds.

    variation: standard deviation of the gaps over their mean. 1 is Poisson, more comes in bursts, less is more regular.
    """
    if variation <= 0:
        raise InputError(f"The variation of gaps between requests must be above 0: {variation:g}.")
    shape = 1 / variation**2
    return np.cumsum(rng.gamma(shape, 1 / (rate_per_s * shape), count))


def daily(rate_per_s: float, *, weights: Sequence[float], days: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Poisson arrivals, in seconds, whose rate follows a day's curve.

    Arguments:
        rate_per_s: mean over the day.
        weights: the curve: weights of equal parts of a day (24: hours), from midnight on; only their ratios count.
        days: length of the load.
    """
    curve = np.asarray(weights, float)
    if curve.ndim != 1 or not len(curve) or np.any(~np.isfinite(curve)) or np.any(curve < 0) or curve.sum() == 0:
        raise InputError("A day's curve needs weights of 0 or more, not all of them 0.")
    part_s = DAY_S / len(curve)
    parts = max(1, round(days * len(curve)))
    means = rate_per_s * part_s * (curve / curve.mean())[np.arange(parts) % len(curve)]
    counts = rng.poisson(means)
    starts = np.repeat(np.arange(parts) * part_s, counts)
    return np.sort(starts + rng.uniform(0, part_s, len(starts)))
