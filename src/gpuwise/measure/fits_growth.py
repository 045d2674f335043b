"""The growth of a fit's time or memory from fits of all rounds and of few.

The rounds of a full fit are those that smaller ones made: the trees that the user asks for, or iterations, which change with
the rows and end at their limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.plan.cpu.growth import Growth, Scatter, growth_of
from gpuwise.results.fits import TimedFit

# Standard deviations of logarithms. Set with the constants of growth.py, on the estimators of benchmarks/classical_tuning.py.
ROUNDS_DRIFT = 0.2  # of the rounds, for each e-fold beyond the largest size at which they are known
ROUNDS_ERROR = 0.4  # of the rounds of one fit, where they end by themselves


def growth_of_fits(
    fits: Sequence[TimedFit],
    few_rounds: Sequence[TimedFit],
    *,
    samples: int,
    round_limit: int | None = None,
    figure: Callable[[TimedFit], float],
    scatter: Scatter,
) -> Growth:
    """The growth of a figure of whole fits.

    Arguments:
        fits: as the user wrote them.
        few_rounds: with fewer rounds, on as many rows or more.
        samples: rows of the full fit.
        round_limit: most rounds of the full fit; None where that of the fits says.
        figure: of a fit, above zero.
        scatter: of the figure.
    """
    every = [*fits, *few_rounds]
    rows, values, reached = [fit.samples for fit in every], list(map(figure, every)), max(map(figure, every))
    if not few_rounds:
        return growth_of(rows, values, reached=reached, scatter=scatter)
    law = RoundsLaw.of(fits)
    full_rounds, error = (float(round_limit or fits[-1].round_limit or 1), 0.0) if law is None else law.at(samples)
    rounds = [fit.rounds or fit.round_limit or full_rounds for fit in every]
    in_caches = replace(scatter, rise=0.0)  # a few rounds had data of nearly all rows
    return growth_of(
        rows, values, rounds=rounds, full_rounds=full_rounds, rounds_error=error, reached=reached, scatter=in_caches
    )


@dataclass(frozen=True)
class RoundsLaw:
    """The rounds of whole fits as a power of the rows.

    Attributes:
        samples: most rows at which they are known.
        rounds: there.
        most: the limit of the rounds; infinite where there is none.
        power: of the rows.
        error: standard deviation of the logarithm of one fit's rounds about the power.
    """

    samples: int
    rounds: float
    most: float
    power: float
    error: float

    @classmethod
    def of(cls, fits: Sequence[TimedFit]) -> RoundsLaw | None:
        """Through whole fits; None where the estimator does not tell its rounds."""
        points = [(fit.samples, fit.rounds, fit.round_limit or fit.rounds) for fit in fits if fit.rounds]
        if not points:
            return None
        samples, rounds, most = points[-1]
        if rounds >= most:
            return cls(samples, float(rounds), float(rounds), 0.0, 0.0)
        x, y = (np.log(np.array(column, float)) for column in list(zip(*points, strict=True))[:2])
        x, y = x - x.mean(), y - y.mean()
        # Ridge regression: before any fit the power is 0, with the error and the drift as standard deviations.
        power = float(x @ y / (x @ x + (ROUNDS_ERROR / ROUNDS_DRIFT) ** 2))
        return cls(samples, float(rounds * np.exp(power * x[-1] - y[-1])), float(most), power, ROUNDS_ERROR)

    def at(self, samples: float) -> tuple[float, float]:
        """The rounds on so many rows, and the standard deviation of their logarithm."""
        beyond = max(0.0, math.log(samples / self.samples))
        error = math.hypot(self.error, ROUNDS_DRIFT * beyond) if self.error else 0.0
        return min(self.most, self.rounds * (samples / self.samples) ** self.power), error
