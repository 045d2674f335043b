"""When requests arrive: evenly at random (Poisson), in bursts, or along a day's curve."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

PERIODS_S = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "day": 86400.0,
    "d": 86400.0,
}
_RATE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(k|M)?\s*/\s*([A-Za-z]+)\s*")
_THOUSANDS = {None: 1.0, "k": 1e3, "M": 1e6}


def parse_rate(text: str) -> float:
    """Requests a second, from "5/s", "90/min", "200/h" or "10k/day"; InputError for anything else."""
    match = _RATE.fullmatch(text)
    if match is None or match[3] not in PERIODS_S:
        raise InputError(
            f"{text!r} is not a rate of requests.", ["write a count and a period, such as 5/s, 90/min, 200/h or 10k/day"]
        )
    rate = float(match[1]) * _THOUSANDS[match[2]] / PERIODS_S[match[3]]
    if not 0 < rate < 1e9:
        raise InputError(f"A rate of requests must be above 0 and below a billion a second: {text!r}.")
    return rate


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
    part_s = PERIODS_S["day"] / len(curve)
    parts = max(1, round(days * len(curve)))
    means = rate_per_s * part_s * (curve / curve.mean())[np.arange(parts) % len(curve)]
    counts = rng.poisson(means)
    starts = np.repeat(np.arange(parts) * part_s, counts)
    return np.sort(starts + rng.uniform(0, part_s, len(starts)))
