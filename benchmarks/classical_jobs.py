"""Estimators for benchmarks.classical_forecasts: each a ClassicalJob whose full fit takes some seconds of one core.

Each kind has two jobs, with few and with many columns. No class of estimators here, and no generator of data, is among those of
benchmarks.classical_tuning, on which the constants of gpuwise.plan.cpu.growth are set: tests/unit/test_classical_split.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, Birch, BisectingKMeans
from sklearn.decomposition import FactorAnalysis
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import ElasticNetCV, HuberRegressor, PoissonRegressor, Ridge
from sklearn.mixture import BayesianGaussianMixture
from sklearn.model_selection import RandomizedSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.svm import NuSVR, OneClassSVM
from sklearn.tree import ExtraTreeRegressor
from xgboost import XGBClassifier

from gpuwise import ClassicalJob

SEED = 11
Array = NDArray[np.float64]
Data = Callable[[int], tuple[Array, Array]]


def friedman(columns: int) -> Data:
    """Friedman's first problem (Annals of Statistics 19, 1991), with columns of which neighbours are correlated."""

    def rows(n: int) -> tuple[Array, Array]:
        random = np.random.default_rng(SEED)
        X = random.uniform(size=(n, columns))
        X[:, 1:] = 0.7 * X[:, 1:] + 0.3 * X[:, :-1]
        y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3]
        return X, y + random.normal(size=n)

    return rows


def counts(columns: int) -> Data:
    """Skewed positive columns, and counts whose mean they change by factors."""

    def rows(n: int) -> tuple[Array, Array]:
        random = np.random.default_rng(SEED + 1)
        X = random.gamma(2.0, size=(n, columns))
        mean = np.exp(0.4 * np.log(X[:, 0]) - 0.3 * (X[:, 1] > 2))
        return X, random.poisson(mean).astype(float)

    return rows


def rings(columns: int) -> Data:
    """Four rings around the origin, of which one row in twenty is labelled wrongly."""

    def rows(n: int) -> tuple[Array, Array]:
        random = np.random.default_rng(SEED + 2)
        label = random.integers(4, size=n)
        X = random.normal(size=(n, columns))
        X *= ((1 + label) / np.linalg.norm(X, axis=1))[:, None]
        X += 0.25 * random.normal(size=X.shape)
        return X, np.where(random.uniform(size=n) < 0.05, random.integers(4, size=n), label)

    return rows


# Estimator, data, and (columns, rows) of the two jobs.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[int], Data], tuple[tuple[int, int], tuple[int, int]]]] = {
    "hist_boosting": (
        lambda: HistGradientBoostingRegressor(loss="poisson", max_iter=120, early_stopping=False),
        counts,
        ((9, 300_000), (40, 100_000)),
    ),
    "xgboost": (lambda: XGBClassifier(n_estimators=60, max_depth=8, n_jobs=1), rings, ((8, 120_000), (40, 30_000))),
    "lightgbm": (
        lambda: LGBMClassifier(n_estimators=60, num_leaves=63, n_jobs=1, verbose=-1),
        rings,
        ((6, 150_000), (30, 40_000)),
    ),
    "forest": (lambda: RandomForestRegressor(30, max_features=0.5, random_state=0), friedman, ((8, 30_000), (40, 8_000))),
    "extra_trees": (lambda: ExtraTreesRegressor(40, min_samples_leaf=3, random_state=0), counts, ((6, 60_000), (30, 20_000))),
    "boosting": (
        lambda: GradientBoostingRegressor(n_estimators=80, max_depth=5, subsample=0.7, random_state=0),
        friedman,
        ((6, 20_000), (25, 6_000)),
    ),
    "bisecting_kmeans": (lambda: BisectingKMeans(20, random_state=0), counts, ((5, 300_000), (40, 100_000))),
    "bayesian_mixture": (lambda: BayesianGaussianMixture(n_components=8, random_state=0), rings, ((3, 60_000), (16, 25_000))),
    "huber": (lambda: HuberRegressor(), friedman, ((10, 300_000), (80, 60_000))),
    "poisson": (lambda: PoissonRegressor(alpha=1e-4, max_iter=300), counts, ((10, 1_000_000), (80, 200_000))),
    "elastic_net": (lambda: ElasticNetCV(cv=3), friedman, ((20, 1_000_000), (120, 200_000))),
    "mlp": (
        lambda: MLPRegressor(hidden_layer_sizes=(50, 50), max_iter=40, random_state=0),
        friedman,
        ((8, 30_000), (60, 20_000)),
    ),
    "nu_svr": (lambda: NuSVR(C=5.0), friedman, ((6, 8_000), (40, 6_000))),
    "one_class": (lambda: OneClassSVM(nu=0.2), rings, ((4, 25_000), (30, 15_000))),
    "kernel_ridge": (lambda: KernelRidge(kernel="rbf"), friedman, ((5, 6_000), (50, 6_500))),
    "nearest": (
        lambda: RandomizedSearchCV(KNeighborsRegressor(), {"n_neighbors": [3, 5, 9, 15]}, n_iter=2, cv=3, random_state=0),
        friedman,
        ((4, 60_000), (10, 15_000)),
    ),
    "hdbscan": (lambda: HDBSCAN(min_cluster_size=30, copy=True), rings, ((2, 30_000), (6, 12_000))),
    "birch": (lambda: Birch(n_clusters=4, threshold=0.8), rings, ((3, 30_000), (12, 20_000))),
    "discriminant": (lambda: LinearDiscriminantAnalysis(), rings, ((20, 1_000_000), (150, 150_000))),
    "factors": (lambda: FactorAnalysis(5, max_iter=200), counts, ((20, 200_000), (100, 40_000))),
    "stacking": (
        lambda: StackingRegressor([("ridge", Ridge()), ("tree", ExtraTreeRegressor(random_state=0))], cv=4),
        friedman,
        ((6, 150_000), (40, 40_000)),
    ),
}
JOBS = {
    f"{kind}_{columns}": ClassicalJob(make, data(columns), samples=rows)
    for kind, (make, data, shapes) in KINDS.items()
    for columns, rows in shapes
}


def __getattr__(name: str) -> ClassicalJob:
    """The jobs by name, as `path.py:name` finds them."""
    try:
        return JOBS[name]
    except KeyError:
        raise AttributeError(name) from None
