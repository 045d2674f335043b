"""Estimators on which the constants of gpuwise.plan.cpu.growth are set. benchmarks.classical_jobs has those that are reported.

No class of estimators is in both, and no generator of data. `kind_of` names the class, which tests/unit/test_classical_split.py
compares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lightgbm import LGBMRegressor
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, AgglomerativeClustering, KMeans, MiniBatchKMeans
from sklearn.decomposition import NMF, PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, Lasso, LinearRegression, LogisticRegression, SGDClassifier
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.tree import DecisionTreeRegressor
from xgboost import XGBRegressor

Rows = tuple[NDArray[np.float64], NDArray[np.float64]]


def labels(columns: int) -> Callable[[int], Rows]:
    """Standard normal rows; a linear and a sine term with noise decide between two labels."""
    weights = np.random.default_rng(99).standard_normal(columns)

    def rows(n: int) -> Rows:
        random = np.random.default_rng(0)
        X = random.standard_normal((n, columns))
        z = X @ weights / np.sqrt(columns) * 2 + np.sin(2 * X[:, 0]) * X[:, 1] + random.standard_normal(n)
        return X, (z > 0).astype(int)

    return rows


def numbers(columns: int) -> Callable[[int], Rows]:
    """Standard normal rows, with a linear and an absolute term and noise as the target."""
    weights = np.random.default_rng(98).standard_normal(columns)

    def rows(n: int) -> Rows:
        random = np.random.default_rng(0)
        X = random.standard_normal((n, columns))
        return X, X @ weights + np.abs(X[:, 0]) * 3 + random.standard_normal(n)

    return rows


def unlabelled(columns: int) -> Callable[[int], NDArray[np.float64]]:
    """Absolute values of normal rows."""
    return lambda n: np.abs(np.random.default_rng(0).standard_normal((n, columns)))


SEARCHED = {"randomforestclassifier__max_features": [0.3, 1.0]}
KINDS: dict[str, tuple[Callable[[], Any], Callable[[int], Any], tuple[int, int]]] = {
    "forest": (lambda: RandomForestClassifier(40, random_state=0), labels, (8, 40)),
    "extra": (lambda: ExtraTreesClassifier(60, random_state=0), labels, (10, 60)),
    "boosting": (lambda: GradientBoostingClassifier(n_estimators=50, random_state=0), labels, (6, 30)),
    "hist": (lambda: HistGradientBoostingClassifier(max_iter=150, random_state=0), labels, (10, 60)),
    "xgb": (lambda: XGBRegressor(n_estimators=150, n_jobs=1), numbers, (10, 60)),
    "lgbm": (lambda: LGBMRegressor(n_estimators=150, n_jobs=1, verbose=-1), numbers, (10, 60)),
    "adaboost": (lambda: AdaBoostClassifier(n_estimators=40, random_state=0), labels, (8, 40)),
    "bagging": (lambda: BaggingRegressor(n_estimators=15, random_state=0), numbers, (8, 30)),
    "isolation": (lambda: IsolationForest(n_estimators=100, max_samples=0.2, random_state=0), labels, (8, 40)),
    "kmeans": (lambda: KMeans(24, n_init=2, random_state=0), labels, (4, 40)),
    "minibatch": (lambda: MiniBatchKMeans(16, random_state=0), labels, (6, 40)),
    "gmm": (lambda: GaussianMixture(6, random_state=0), labels, (4, 20)),
    "logistic": (lambda: LogisticRegression(max_iter=300, C=100), labels, (20, 200)),
    "sgd": (lambda: SGDClassifier(random_state=0), labels, (20, 100)),
    "lasso": (lambda: Lasso(alpha=0.01), numbers, (20, 200)),
    "linsvc": (lambda: LinearSVC(C=10), labels, (20, 100)),
    "mlp": (lambda: MLPClassifier((60,), max_iter=30, random_state=0), labels, (10, 60)),
    "svc": (lambda: SVC(), labels, (6, 40)),
    "svr": (lambda: SVR(C=10), numbers, (6, 40)),
    "neighbours": (lambda: KNeighborsClassifier(), labels, (4, 12)),
    "outliers": (lambda: LocalOutlierFactor(20), labels, (4, 10)),
    "dbscan": (lambda: DBSCAN(eps=0.3), labels, (2, 3)),
    "agglomerative": (lambda: AgglomerativeClustering(5), labels, (4, 20)),
    "tree": (lambda: DecisionTreeRegressor(random_state=0), numbers, (10, 50)),
    "linear": (lambda: LinearRegression(), numbers, (40, 250)),
    "bayesian": (lambda: BayesianRidge(), numbers, (40, 200)),
    "pca": (lambda: make_pipeline(StandardScaler(), PCA(10)), labels, (40, 200)),
    "nmf": (lambda: NMF(6, init="nndsvda", max_iter=100), unlabelled, (20, 60)),
    "process": (lambda: GaussianProcessRegressor(optimizer=None, alpha=1.0), numbers, (4, 20)),
    "search": (
        lambda: GridSearchCV(make_pipeline(StandardScaler(), RandomForestClassifier(15, random_state=0)), SEARCHED, cv=3),
        labels,
        (6, 24),
    ),
}
