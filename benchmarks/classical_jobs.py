"""Estimators for benchmarks.classical_forecasts: each a ClassicalJob whose full fit takes some tens of seconds of one core.

None of these rows, settings or generators were used to set the constants of gpuwise.plan.cpu.growth. Those were set on SEEN
kinds of estimators, on standard normal rows with a linear and a sine term. UNSEEN kinds are new as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor, LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from xgboost import XGBClassifier

from gpuwise import ClassicalJob

SEED = 7
SEEN = (
    "linear",
    "logistic",
    "forest",
    "boosting",
    "hist_boosting",
    "svc",
    "kmeans",
    "knn",
    "pca",
    "search",
    "xgboost",
    "lightgbm",
)
UNSEEN = ("adaboost", "bagging", "gaussian_process", "outliers", "isolation", "bayesian_ridge", "nmf")

Data = Callable[[int], tuple[NDArray[np.float64], NDArray[np.float64]]]


def friedman(columns: int) -> Data:
    """Friedman's first problem (Annals of Statistics 19, 1991): uniform columns, of which five matter."""

    def rows(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        random = np.random.default_rng(SEED)
        X = random.uniform(size=(n, columns))
        y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
        return X, y + random.normal(size=n)

    return rows


def groups(columns: int, *, count: int = 6, spread: float = 2.0) -> Data:
    """Overlapping groups: normal around `count` centres, the group as the label."""
    centres = np.random.default_rng(SEED).normal(size=(count, columns)) * spread / np.sqrt(columns)

    def rows(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        random = np.random.default_rng(SEED + 1)
        label = random.integers(count, size=n)
        return centres[label] + random.normal(size=(n, columns)), label

    return rows


def positive(columns: int) -> Callable[[int], NDArray[np.float64]]:
    """Products of positive factors, without labels."""

    def rows(n: int) -> NDArray[np.float64]:
        random = np.random.default_rng(SEED)
        return random.gamma(1.0, size=(n, 8)) @ random.gamma(1.0, size=(8, columns))

    return rows


linear = ClassicalJob(lambda: LinearRegression(), friedman(300), 300_000)
logistic = ClassicalJob(lambda: LogisticRegression(max_iter=100), groups(60), 400_000)
forest = ClassicalJob(lambda: RandomForestRegressor(30, random_state=0), friedman(12), 60_000)
boosting = ClassicalJob(lambda: GradientBoostingRegressor(n_estimators=60, random_state=0), friedman(12), 80_000)
hist_boosting = ClassicalJob(lambda: HistGradientBoostingRegressor(max_iter=200, early_stopping=False), friedman(30), 500_000)
svc = ClassicalJob(lambda: SVC(C=2.0), groups(12), 24_000)
kmeans = ClassicalJob(lambda: KMeans(20, n_init=1, random_state=0), groups(16), 800_000)
knn = ClassicalJob(lambda: KNeighborsRegressor(), friedman(5), 3_000_000)
pca = ClassicalJob(lambda: make_pipeline(PolynomialFeatures(2), PCA(10)), friedman(16), 500_000)
search = ClassicalJob(
    lambda: GridSearchCV(
        make_pipeline(StandardScaler(), RandomForestRegressor(10, random_state=0)),
        {"randomforestregressor__max_features": [0.3, 1.0]},
        cv=3,
    ),
    friedman(10),
    30_000,
)
xgboost = ClassicalJob(lambda: XGBClassifier(n_estimators=60, tree_method="hist", n_jobs=1), groups(25, count=3), 500_000)
lightgbm = ClassicalJob(lambda: LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1), groups(25, count=3), 500_000)

adaboost = ClassicalJob(lambda: AdaBoostClassifier(n_estimators=40, random_state=0), groups(15), 150_000)
bagging = ClassicalJob(lambda: BaggingRegressor(n_estimators=15, random_state=0), friedman(12), 60_000)
gaussian_process = ClassicalJob(lambda: GaussianProcessRegressor(optimizer=None, alpha=1.0), friedman(6), 9_000)
outliers = ClassicalJob(lambda: LocalOutlierFactor(20), groups(5), 250_000)
isolation = ClassicalJob(lambda: IsolationForest(n_estimators=200, max_samples=0.2, random_state=0), groups(10), 120_000)
bayesian_ridge = ClassicalJob(lambda: BayesianRidge(), friedman(200), 300_000)
nmf = ClassicalJob(lambda: NMF(8, init="nndsvda", max_iter=60), positive(40), 300_000)
