"""The growth of a figure with the number of rows, from few sizes to many more: its value with an interval.

The figure is taken as a constant and one or two powers of the rows, with no coefficient below zero, by relative least
squares: times of estimators are sums of work that does not grow, work a row, sorts, and work a pair of rows. The estimator's
class does not choose among them: every law of LAWS is fitted, and their forecasts are averaged by how well they fit (Bayesian
model averaging with Gaussian errors of the logarithm: Hoeting et al., Statistical Science 14, 1999). Where laws that fit
equally well disagree, the interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gpuwise.cost.forecast import Interval

Array = NDArray[np.float64]
_TERMS: dict[str, Callable[[Array], Array]] = {
    "1": np.ones_like,
    "n^0.75": lambda n: n**0.75,
    "n": lambda n: n,
    "n log n": lambda n: n * np.log(n),
    "n^1.25": lambda n: n**1.25,
    "n^1.5": lambda n: n**1.5,
    "n^2": lambda n: n**2,
    "n^3": lambda n: n**3,
}
# Laws and their weights before any fit: passes over the rows and sorts are nearly all that estimators do.
LAWS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("1", "n^0.75"), 5.0),
    (("1", "n"), 30.0),
    (("1", "n log n"), 30.0),
    (("1", "n^1.25"), 5.0),
    (("1", "n^1.5"), 1.0),
    (("1", "n", "n^2"), 1.0),
    (("1", "n^2"), 1.0),
    (("1", "n^2", "n^3"), 1.0),
    (("1", "n^3"), 1.0),
)
Z90 = 1.645  # standard deviations of a 90 % interval


@dataclass(frozen=True)
class Scatter:
    """How far a figure is from a law, in standard deviations of its logarithm.

    Attributes:
        error: of one size.
        fading: added for each e-fold between a size and the largest: small sizes say little of large ones.
        drift: added for each e-fold beyond the largest.
    """

    error: float
    fading: float
    drift: float


# Set on 40 runs of estimators on data that benchmarks/classical_forecasts.py does not report.
TIME = Scatter(error=0.1, fading=0.4, drift=0.2)
# Assumed: peaks of resident memory repeat within a few pages, and tables and models grow as they did before.
MEMORY = Scatter(error=0.01, fading=0.05, drift=0.1)


@dataclass(frozen=True)
class Growth:
    """The growth of a figure with rows. Made by `growth_of`.

    Attributes:
        largest: most rows that were measured.
        reached: the figure there, below which it does not fall with more.
        weights: probability of each law.
        coefficients: of each law's terms.
        scatter: of the figure.
    """

    largest: float
    reached: float
    weights: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    scatter: Scatter

    def scaled(self, factor: float) -> Growth:
        """The growth of a multiple of the figure."""
        coefficients = tuple(tuple(factor * a for a in own) for own in self.coefficients)
        return replace(self, reached=factor * self.reached, coefficients=coefficients)

    def at(self, samples: float) -> Interval:
        """The figure at a number of rows, with its 90 % interval."""
        weights, logs = np.array(self.weights), self._logs(samples)
        middle = float(weights @ logs)
        apart = float(weights @ (logs - middle) ** 2)
        beyond = max(0.0, math.log(samples / self.largest))
        spread = Z90 * math.sqrt(apart + self.scatter.error**2 + (self.scatter.drift * beyond) ** 2)
        value, low = math.exp(middle), math.exp(middle - spread)
        least = min(self.reached, value) if beyond else 0.0
        return Interval(value, max(low, least), math.exp(middle + spread))

    def exponent_at(self, samples: float) -> float:
        """The local power of the growth: 1 in proportion to the rows, 2 with their square."""
        step = 1e-3
        grown = self._logs(samples * math.exp(step)) - self._logs(samples * math.exp(-step))
        return float(np.array(self.weights) @ grown) / (2 * step)

    def samples_within(self, limit: float, *, most: int) -> int:
        """The most rows whose likeliest figure is within a limit; 0 where not even one row's is."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.at(middle).value <= limit else (low, middle - 1)
        return low

    def _logs(self, samples: float) -> Array:
        return np.array(
            [math.log(_value(terms, own, samples)) for (terms, _), own in zip(LAWS, self.coefficients, strict=True)]
        )


def growth_of(samples: Sequence[float], values: Sequence[float], *, scatter: Scatter = TIME) -> Growth:
    """The growth through measured sizes.

    Arguments:
        samples: rows of each size, rising.
        values: the figure at each, above zero.
        scatter: of the figure.

    Raises ValueError for fewer than two sizes.
    """
    n, y = np.array(samples, float), np.array(values, float)
    if len(n) < 2 or (y <= 0).any():
        raise ValueError("a growth takes two sizes or more, and values above zero")
    certainty = 1 / (scatter.error**2 + (scatter.fading * np.log(n[-1] / n)) ** 2)
    coefficients, scores = [], []
    for terms, prior in LAWS:
        own = _fitted(terms, n, y, certainty)
        misses = np.log(sum(a * _TERMS[term](n) for a, term in zip(own, terms, strict=True)) / y)
        coefficients.append(own)
        scores.append(math.log(prior) - float(certainty @ misses**2) / 2)
    likely = np.exp(np.array(scores) - max(scores))
    return Growth(float(n[-1]), float(y[-1]), tuple((likely / likely.sum()).tolist()), tuple(coefficients), scatter)


def _fitted(terms: Sequence[str], n: Array, y: Array, certainty: Array) -> tuple[float, ...]:
    """Coefficients from zero on with the least squares of relative errors: the best of all choices of terms."""
    scale = np.sqrt(certainty)
    columns = np.stack([_TERMS[term](n) / y * scale for term in terms], axis=1)
    most = columns.max(axis=0)
    best: tuple[float, Array] | None = None
    for count in range(1, len(terms) + 1):
        for chosen in map(list, combinations(range(len(terms)), count)):
            part = (columns / most)[:, chosen]
            solved = np.linalg.lstsq(part, scale, rcond=None)[0]
            left = float(((part @ solved - scale) ** 2).sum())
            if (solved >= 0).all() and (best is None or left < best[0]):
                whole = np.zeros(len(terms))
                whole[chosen] = solved
                best = left, whole / most
    assert best is not None  # a single column is positive
    return tuple(best[1].tolist())


def _value(terms: Sequence[str], coefficients: Sequence[float], samples: float) -> float:
    n = np.array(float(samples))
    return float(sum(a * _TERMS[term](n) for a, term in zip(coefficients, terms, strict=True)))
