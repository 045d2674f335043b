"""Rounds of an estimator: its trees, boosting rounds or iterations. Their limit is lowered before a fit, and read after it.

The time of such a fit is a part that does not depend on the rounds, and a time for each round. Names are scikit-learn's, which
XGBoost, LightGBM and CatBoost share.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from gpuwise.job.classical import Estimator

# Parameters that limit rounds, and what a fitted estimator has to say how many it made.
_COUNTS = {
    "n_estimators": ("n_estimators_", "estimators_"),
    "max_iter": ("n_iter_",),
    "iterations": ("tree_count_",),
}
_OF_TREES = "max_leaf_nodes"  # a parameter of boosters whose `max_iter` is their number of trees
_FITTED = ("best_estimator_",)  # a search's estimator, which it fits on all rows last


class _Tunable(Protocol):
    """An estimator of scikit-learn's kind."""

    def get_params(self) -> dict[str, object]: ...

    def set_params(self, **parameters: object) -> Estimator: ...


@dataclass(frozen=True)
class RoundLimit:
    """The parameter of an estimator that limits its rounds.

    Attributes:
        name: of the parameter, as `set_params` takes it: "logisticregression__max_iter".
        most: its value; None where the library has a default of its own.
        trees: whether rounds are trees, all of which a fit grows; iterations end where they converge.
    """

    name: str
    most: int | None
    trees: bool

    def lowered(self, estimator: Estimator, rounds: int) -> Estimator:
        """The unfitted estimator with so many rounds at most."""
        return cast(_Tunable, estimator).set_params(**{self.name: rounds})

    def rounds_of(self, estimator: Estimator) -> int | None:
        """The rounds that a fitted estimator made; None where it does not tell."""
        with suppress(Exception):  # whatever an estimator's own attributes raise
            owner, name = self._owner(estimator)
            if hasattr(owner, "get_booster"):  # XGBoost, whose forests are one round of many trees
                rounds = int(getattr(owner, "get_booster")().num_boosted_rounds())  # noqa: B009
                return rounds if rounds > 1 else None
            counts = [getattr(owner, attribute, None) for attribute in _COUNTS[name]]
            return next((_count(each) for each in counts if each is not None), None)
        return None

    def _owner(self, estimator: object) -> tuple[object, str]:
        """The part of an estimator that has the parameter, and the parameter's own name."""
        *path, name = self.name.split("__")
        for part in path:
            fitted = [getattr(estimator, each) for each in _FITTED if hasattr(estimator, each)]
            estimator = fitted[0] if fitted and part == "estimator" else cast(_Tunable, estimator).get_params().get(part)
        return estimator, name


def round_limit_of(estimator: Estimator) -> RoundLimit | None:
    """The outermost parameter that limits rounds; None where there is none, or more than one."""
    try:
        parameters = cast(_Tunable, estimator).get_params()
    except Exception:  # no estimator of scikit-learn's kind
        return None
    candidates = [
        (name.count("__"), name)
        for name, value in parameters.items()
        if name.split("__")[-1] in _COUNTS and (_is_count(value) or (value is None and hasattr(estimator, "get_booster")))
    ]
    outermost = [name for depth, name in candidates if depth == min(candidates)[0]]
    if len(outermost) != 1:
        return None
    path, _, own = outermost[0].rpartition("__")
    most = parameters[outermost[0]]
    trees = own != "max_iter" or f"{path}__{_OF_TREES}".removeprefix("__") in parameters
    return RoundLimit(outermost[0], most if isinstance(most, int) else None, trees)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _count(rounds: object) -> int | None:
    """A number of rounds from a number, an array of them (one a class) or a list of estimators."""
    counts = np.asarray(rounds)
    if counts.dtype == object or isinstance(rounds, list | tuple):  # estimators; GradientBoosting has a row of them a round
        return len(counts)
    return int(counts.max()) if counts.size else None
