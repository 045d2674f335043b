"""The growth of a figure with the number of rows, from few sizes to many more: its value with an interval.

The figure is taken as a constant and one or two powers of the rows, with no coefficient below zero, by relative least
squares: times of estimators are sums of work that does not grow, work a row, sorts, and work a pair of rows. Where fits of
fewer rounds (trees, iterations) are among the sizes, each power has two coefficients: of what all rounds share, and of one
round. The estimator's class does not choose among the laws: each is fitted, and their forecasts are averaged by how well they
fit (Bayesian model averaging with Gaussian errors of the logarithm: Hoeting et al., Statistical Science 14, 1999). For the
interval each law is also fitted to the sizes as they might have been measured another time (a parametric bootstrap: Efron and
Tibshirani, An Introduction to the Bootstrap, 1993): the time of a row, hidden by a constant cost at first, may count later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.plan.cpu.laws import LAWS, ROUND_LAWS, Array, fitted, terms_at

Z90 = 1.645  # standard deviations of a 90 % interval
DRAWS = 100  # fits of a law to sizes measured another time
LEAST_RATIO = 1e-3  # of a size as it might have been measured, to the size as it was


@dataclass(frozen=True)
class Scatter:
    """How far a figure is from a law, in standard deviations of its logarithm.

    Attributes:
        error: of one size.
        jitter: of one size, in the figure's own unit.
        fading: added for each e-fold between a size and the largest: small sizes say little of large ones.
        drift: added for each e-fold beyond the largest.
        rise: expected of the logarithm for each e-fold beyond the largest, up to `most_rise`.
    """

    error: float
    jitter: float
    fading: float
    drift: float
    rise: float = 0.0
    most_rise: float = 0.0


# Set on the estimators of benchmarks/classical_tuning.py. Beyond the sizes of a trial data leave the caches, and large arrays
# come from the system page by page: a row takes longer.
TIME = Scatter(error=0.1, jitter=1e-3, fading=0.3, drift=0.2, rise=0.2, most_rise=0.5)
# Assumed: peaks of resident memory repeat within a few pages, and tables and models grow as they did before.
MEMORY = Scatter(error=0.01, jitter=1e6, fading=0.05, drift=0.1)


@dataclass(frozen=True)
class Law:
    """One law of growth through measured sizes.

    Attributes:
        terms: powers of the rows, by name.
        weight: its probability.
        coefficients: of the terms, a column each. First row: of the sizes as measured; the others: as they might have been.
    """

    terms: tuple[str, ...]
    weight: float
    coefficients: Array


@dataclass(frozen=True)
class Growth:
    """The growth of a figure with rows. Made by `growth_of`.

    Attributes:
        largest: most rows that were measured.
        reached: the largest measured figure, below which it does not fall with more rows.
        laws: the laws.
        rounds_error: of the rounds of the full fit, a standard deviation of their logarithm.
        scatter: of the figure.
    """

    largest: float
    reached: float
    laws: tuple[Law, ...]
    rounds_error: float
    scatter: Scatter

    def scaled(self, factor: float) -> Growth:
        """The growth of a multiple of the figure."""
        laws = [replace(law, coefficients=factor * law.coefficients) for law in self.laws]
        return replace(self, reached=factor * self.reached, laws=tuple(laws))

    def at(self, samples: float) -> Interval:
        """The figure at a number of rows, with its 90 % interval."""
        weights, logs = self._by_law(samples)
        beyond = self._beyond(samples)
        value, rise = self.value_at(samples), self._rise(samples)
        own = math.hypot(self.scatter.error, self.rounds_error, self.scatter.drift * beyond)
        drawn = logs[:, 1:] + rise + own * _normals(len(logs))
        low, high = _quantiles(drawn, weights / DRAWS, (0.05, 0.95))
        own_factor = math.exp(Z90 * self.scatter.error)  # each end is at least so far from the value
        least = min(self.reached, value) / own_factor if beyond else 0.0
        return Interval(value, max(min(math.exp(low), value / own_factor), least), max(math.exp(high), value * own_factor))

    def value_at(self, samples: float) -> float:
        """The likeliest figure at a number of rows."""
        weights, logs = self._by_law(samples)
        value = math.exp(float(weights @ logs[:, 0]) + self._rise(samples))
        return max(value, self.reached) if self._beyond(samples) else value

    def exponent_at(self, samples: float) -> float:
        """The local power of the growth: 1 in proportion to the rows, 2 with their square."""
        step = 1e-3
        weights, more = self._by_law(samples * math.exp(step))
        less = self._by_law(samples * math.exp(-step))[1]
        return float(weights @ (more - less)[:, 0]) / (2 * step)

    def samples_within(self, limit: float, *, most: int) -> int:
        """The most rows whose likeliest figure is within a limit; 0 where not even one row's is."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.value_at(middle) <= limit else (low, middle - 1)
        return low

    def _beyond(self, samples: float) -> float:
        """E-folds beyond the largest size."""
        return max(0.0, math.log(samples / self.largest))

    def _rise(self, samples: float) -> float:
        """What is added to the logarithm of the figure."""
        return min(self.scatter.rise * self._beyond(samples), self.scatter.most_rise)

    def _by_law(self, samples: float) -> tuple[Array, Array]:
        """Weights, and logarithms of the figure: a law a row, its fits in columns."""
        at = np.array([float(samples)])
        figures = np.stack([law.coefficients @ terms_at(law.terms, at)[0] for law in self.laws])
        # n log n of a single row is nothing, which has no logarithm.
        return np.array([law.weight for law in self.laws]), np.log(np.maximum(figures, np.finfo(float).tiny))


def growth_of(
    samples: Sequence[float],
    values: Sequence[float],
    *,
    rounds: Sequence[float] | None = None,
    full_rounds: float = 1.0,
    rounds_error: float = 0.0,
    reached: float | None = None,
    scatter: Scatter = TIME,
) -> Growth:
    """The growth through measured sizes.

    Arguments:
        samples: rows of each size.
        values: the figure at each, above zero.
        rounds: of each; None where they do not matter.
        full_rounds: of the full fit.
        rounds_error: of these, a standard deviation of their logarithm.
        reached: the largest figure that was measured; None for that of the last size.
        scatter: of the figure.

    Raises ValueError for fewer than two sizes.
    """
    n, y = np.array(samples, float), np.array(values, float)
    if len(n) < 2 or (y <= 0).any():
        raise ValueError("a growth takes two sizes or more, and values above zero")
    certainty = 1 / (scatter.error**2 + (scatter.jitter / y) ** 2 + (scatter.fading * np.log(n.max() / n)) ** 2)
    laws = [(terms, prior, _columns(terms, n, rounds)) for terms, prior in (LAWS if rounds is None else ROUND_LAWS)]
    spread = _spread([(columns, _misses(columns, y, certainty)) for _, _, columns in laws], certainty)
    certainty, scatter = certainty / spread**2, replace(scatter, error=spread * scatter.error)
    ratios = np.maximum(1 + _normals(len(n)) / np.sqrt(certainty)[:, None], LEAST_RATIO)
    ratios = np.concatenate([np.ones((len(n), 1)), ratios], axis=1)
    by_law, scores = [], []
    for terms, prior, columns in laws:
        whole = np.eye(len(terms))
        if rounds is not None:
            whole = np.concatenate([whole, full_rounds * whole])
        own = fitted(columns, y, certainty, ratios=ratios)
        misses = np.log(columns @ own[0] / y)
        by_law.append((terms, own @ whole))
        scores.append(math.log(prior) - float(certainty @ misses**2) / 2)
    likely = np.exp(np.array(scores) - max(scores))
    likely /= likely.sum()
    by_weight = [Law(terms, float(weight), own) for (terms, own), weight in zip(by_law, likely, strict=True)]
    return Growth(float(n.max()), float(y[-1]) if reached is None else reached, tuple(by_weight), rounds_error, scatter)


def _columns(terms: Sequence[str], samples: Array, rounds: Sequence[float] | None) -> Array:
    """The terms at each size; with rounds those of what all share, then those of one round times the rounds."""
    columns = terms_at(terms, samples)
    return columns if rounds is None else np.concatenate([columns, columns * np.array(rounds, float)[:, None]], axis=1)


def _misses(columns: Array, values: Array, certainty: Array) -> Array:
    """Logarithms of a law's figures over those that were measured."""
    own = fitted(columns, values, certainty, ratios=np.ones((len(values), 1)))[0]
    return np.log(columns @ own / values)


def _spread(laws: Sequence[tuple[Array, Array]], certainty: Array) -> float:
    """Errors of the sizes about the law that is nearest to them, over those assumed; 1 where they are smaller.

    Where a second thread joins, times jump, and no law is near. Errors as large as that make none of them certain.
    """
    freedom = [max(1, len(certainty) - columns.shape[1]) for columns, _ in laws]
    squares = [float(certainty @ misses**2) / free for (_, misses), free in zip(laws, freedom, strict=True)]
    return math.sqrt(max(1.0, min(squares)))


@cache
def _normals(rows: int) -> Array:
    """Standard normal numbers, DRAWS in a row, the same each time."""
    return np.random.default_rng(0).standard_normal((rows, DRAWS))


def _quantiles(values: Array, weights: Array, shares: Sequence[float]) -> list[float]:
    """Quantiles of values whose rows have weights each, those of all values adding up to 1."""
    order = np.argsort(values, axis=None)
    reached = np.cumsum(np.broadcast_to(weights[:, None], values.shape).ravel()[order])
    index = np.minimum(np.searchsorted(reached, np.array(shares)), len(order) - 1)
    return [float(value) for value in values.ravel()[order[index]]]
