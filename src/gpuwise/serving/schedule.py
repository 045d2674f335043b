"""FleetSchedule: how many instances a fleet has at which time of the day, and what of it is paid."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, sqrt

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

DAY_S = 86_400.0
DOWN = 1e-3  # of the time, in which more instances may be gone than the spare ones
MANY, NORMAL = 100.0, 3.09  # from so many on the normal quantile of DOWN
_ROUNDING = 1e-9  # of a rate that is a whole number of instances


@dataclass(frozen=True)
class FleetSchedule:
    """When a fleet has how many instances.

    Attributes:
        multiples: rates of equal parts of a day over the mean rate. (1.0,) by default: the rate is constant.
        follows: whether the number of instances follows the parts; else (the default) it is that of the busiest part.
        start_s: cold start of an instance, which begins before the part that needs it, and is paid.
        gone: share of the time in which an instance is lost and its successor starts; 0 (default) where none is taken away.
    """

    multiples: tuple[float, ...] = (1.0,)
    follows: bool = False
    start_s: float = 0.0
    gone: float = 0.0

    def __post_init__(self) -> None:
        if not self.multiples or min(self.multiples) < 0 or not 0 <= self.gone < 1:
            raise InputError("A schedule needs rates of 0 or more, and instances that are mostly there.")
        if self.follows and self.start_s > DAY_S / len(self.multiples):
            raise InputError(f"A cold start of {self.start_s:,.0f} s is longer than a part of the day.", ["no --autoscale"])

    @property
    def peak(self) -> float:
        """The rate of the busiest part over the mean."""
        return max(self.multiples)

    @property
    def parts(self) -> tuple[float, ...]:
        """The multiples that have a number of instances of their own."""
        return self.multiples if self.follows else (self.peak,)

    def counts(self, rate_per_s: float, takes: float) -> NDArray[np.int64]:
        """Instances of each part at a mean rate, each at least 1. takes: requests a second that one is given at most."""
        return self._counts(np.array([rate_per_s]), takes)[0]

    def paid(self, rates: NDArray[np.float64], takes: float) -> NDArray[np.float64]:
        """Mean number of instances that are paid, at each of some mean rates: those of the parts, and their starts."""
        return self.paid_of(self._counts(rates, takes))

    def paid_of(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same from the instances of each part, shape (rates, parts)."""
        starts = np.maximum(counts - np.roll(counts, 1, axis=1), 0).sum(axis=1)
        mean: NDArray[np.float64] = counts.mean(axis=1) + starts * self.start_s / DAY_S
        return mean

    def paid_at(self, rate_per_s: float, takes: float) -> float:
        """The same at one mean rate."""
        return float(self.paid(np.array([rate_per_s]), takes)[0])

    def steps(self, takes: float, up_to: float, *, most: int) -> NDArray[np.float64]:
        """The rates up to `up_to` beyond which some part needs one more instance, and `up_to`; about `most` of them."""
        parts = {part for part in self.parts if part > 0}
        each = max(1, most // len(parts))
        rates = [takes / part * np.arange(1, min(each, int(up_to * part / takes)) + 1) for part in parts]
        steps = np.unique(np.concatenate(rates))
        return np.append(steps[steps < up_to], up_to)  # a multiple may round to above it

    def spare(self, instances: int) -> int:
        """Instances beside those that a rate takes, so that it is served while as many are gone; 0 where none is taken away."""
        return spare_instances(instances * self.gone) if self.gone else 0

    def _counts(self, rates: NDArray[np.float64], takes: float) -> NDArray[np.int64]:
        needed = np.maximum(1, np.ceil(np.outer(rates, self.parts) / takes - _ROUNDING)).astype(np.int64)
        if not self.gone:
            return needed
        numbers, where = np.unique(needed, return_inverse=True)
        return needed + np.array([self.spare(int(number)) for number in numbers])[where.reshape(needed.shape)]


CONSTANT = FleetSchedule()


def spare_instances(mean_gone: float) -> int:
    """The fewest spare instances, at least one, than which no more are gone but for DOWN of the time.

    Instances are lost independently, so the number that are gone is a Poisson one of that mean (an M/G/infinity queue); of
    many it is nearly normal. That the spare ones may be gone, too, is left out.
    """
    if mean_gone > MANY:
        return ceil(mean_gone + NORMAL * sqrt(mean_gone))
    spare, term = 0, exp(-mean_gone)
    within = term
    while spare == 0 or 1 - within > DOWN:
        spare += 1
        term *= mean_gone / spare
        within += term
    return spare
