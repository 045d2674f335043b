"""Laws of growth with rows, and their coefficients from measured sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_TERMS: dict[str, Callable[[Array], Array]] = {
    "1": np.ones_like,
    "n^0.5": lambda n: n**0.5,
    "n^0.75": lambda n: n**0.75,
    "n": lambda n: n,
    "n log n": lambda n: n * np.log(n),
    "n^1.25": lambda n: n**1.25,
    "n^1.5": lambda n: n**1.5,
    "n^2": lambda n: n**2,
    "n^3": lambda n: n**3,
}
# Laws and their weights before any fit: passes over the rows and sorts are nearly all that estimators do, and a cube is rare.
# Set on the estimators of benchmarks/classical_tuning.py; n^0.5 and what repeats of rounds weigh were checked there alone.
LAWS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("1", "n^0.75"), 5.0),
    (("1", "n"), 30.0),
    (("1", "n log n"), 30.0),
    (("1", "n^1.25"), 10.0),
    (("1", "n^1.5"), 2.0),
    (("1", "n", "n^2"), 2.0),
    (("1", "n^2"), 2.0),
    (("1", "n^2", "n^3"), 0.5),
    (("1", "n^3"), 0.5),
)
# Of what rounds share and of one round: a round passes over the rows, or sorts them. A histogram booster's round grows more
# slowly, from the filling of its bins, which does not depend on the rows, to the passes over them.
ROUND_LAWS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("1", "n^0.5"), 20.0),
    (("1", "n^0.75"), 30.0),
    (("1", "n"), 30.0),
    (("1", "n log n"), 10.0),
    (("1", "n^1.25"), 1.0),
    (("1", "n", "n^2"), 0.1),
)


def terms_at(terms: Sequence[str], samples: Array) -> Array:
    """The terms at numbers of rows: a row each."""
    return np.stack([_TERMS[term](samples) for term in terms], axis=1)


def fitted(columns: Array, values: Array, certainty: Array, *, ratios: Array) -> Array:
    """Coefficients from zero on with the least squares of relative errors, the best of all choices of columns.

    Arguments:
        columns: a term each, a size a row.
        values: the figure at each size.
        certainty: one over the variance of its logarithm.
        ratios: a size a row, a fit a column: the figure that is fitted, over `values`.

    Returns a row a fit, a coefficient a column.
    """
    scale = np.sqrt(certainty)[:, None]
    weighted = columns / values[:, None] * scale
    most = weighted.max(axis=0)
    sought = ratios * scale
    least = np.full(sought.shape[1], np.inf)
    result = np.zeros((sought.shape[1], columns.shape[1]))
    for count in range(1, min(columns.shape) + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), count)):
            part = (weighted / most)[:, chosen]
            solved = np.linalg.pinv(part) @ sought
            left = ((part @ solved - sought) ** 2).sum(axis=0)
            better = (solved >= 0).all(axis=0) & (left < least)  # a single column is never below zero
            least[better] = left[better]
            result[better] = 0.0
            result[np.ix_(better, chosen)] = (solved[:, better] / most[chosen, None]).T
    return result
