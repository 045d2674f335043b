"""Rounds of estimators: found, lowered and counted; and whole fits from fits of few rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gpuwise.job.rounds import round_limit_of
from gpuwise.measure.fit_ladder import FitLadder
from gpuwise.measure.fits_growth import RoundsLaw, growth_of_fits
from gpuwise.plan.cpu.growth import TIME
from gpuwise.results.fits import TimedFit

pytest.importorskip("sklearn")
from sklearn.cluster import KMeans
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

X = np.random.default_rng(0).standard_normal((120, 3))
Y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int) + (X[:, 2] > 1)


def xgboost(**settings: object) -> object:
    return pytest.importorskip("xgboost").XGBClassifier(n_jobs=1, **settings)


def lightgbm() -> object:
    return pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=7, n_jobs=1, verbose=-1)


SEARCH = {"estimator__logisticregression__C": [1.0]}


@pytest.mark.parametrize(
    ("make", "name", "made"),
    [
        (lambda: RandomForestClassifier(6), "n_estimators", 6),
        (lambda: BaggingClassifier(LogisticRegression(), n_estimators=4), "n_estimators", 4),
        (lambda: GradientBoostingClassifier(n_estimators=5), "n_estimators", 5),
        (lambda: HistGradientBoostingClassifier(max_iter=8), "max_iter", 8),
        (lambda: xgboost(n_estimators=9), "n_estimators", 9),
        (xgboost, "n_estimators", 100),
        (lightgbm, "n_estimators", 7),
        (lambda: make_pipeline(StandardScaler(), RandomForestClassifier(5)), "randomforestclassifier__n_estimators", 5),
        (
            lambda: GridSearchCV(make_pipeline(StandardScaler(), RandomForestClassifier(3)), {}, cv=2),
            "estimator__randomforestclassifier__n_estimators",
            3,
        ),
    ],
)
def test_the_rounds_of_estimators(make: Callable[[], object], name: str, made: int):
    limit = round_limit_of(make())
    assert limit is not None
    assert limit.name == name
    assert limit.rounds_of(make().fit(X, Y)) == made
    assert limit.rounds_of(limit.lowered(make(), 2).fit(X, Y)) == 2


@pytest.mark.parametrize("make", [lambda: LogisticRegression(C=10), lambda: KMeans(5, n_init=1, random_state=0)])
def test_iterations_are_those_that_were_made(make: Callable[[], LogisticRegression | KMeans]):
    limit = round_limit_of(make())
    assert limit is not None
    fitted = make().fit(X, Y)
    assert limit.rounds_of(fitted) == np.max(fitted.n_iter_)
    assert limit.most == fitted.max_iter > np.max(fitted.n_iter_)


def test_rounds_are_trees_or_iterations():
    trees = (RandomForestClassifier(), HistGradientBoostingClassifier(), make_pipeline(StandardScaler(), BaggingClassifier()))
    for estimator, expected in [*((each, True) for each in trees), (LogisticRegression(), False), (KMeans(), False)]:
        limit = round_limit_of(estimator)
        assert limit is not None
        assert limit.trees is expected


def test_few_trees_alone_say_what_all_take():
    few = [fit(n, rounds, whole=False) for n in (1000, 4000, 16_000) for rounds in (2, 5)]
    interval = growth_of_fits([], few, samples=16_000, round_limit=100, figure=lambda one: one.cpu_s, scatter=TIME).at(16_000)
    assert interval.value == pytest.approx(seconds(16_000, 100), rel=0.15)


def test_estimators_without_one_limit_have_none():
    two = VotingClassifier([("a", LogisticRegression()), ("b", RandomForestClassifier())])
    for estimator in (LinearRegression(), SVC(), two, object()):
        assert round_limit_of(estimator) is None


def test_an_estimator_that_does_not_tell_its_rounds():
    limit = round_limit_of(RandomForestClassifier(4))
    assert limit is not None
    assert limit.rounds_of(RandomForestClassifier(4)) is None


def seconds(rows: int, rounds: int) -> float:
    return 0.2 + 1e-4 * rows + rounds * (0.01 + 1e-5 * rows)


def fit(rows: int, rounds: int, *, most: int = 100, whole: bool = True, counted: bool = True) -> TimedFit:
    taken = seconds(rows, rounds)
    return TimedFit(rows, taken, taken, None, 1, rounds if counted else None, most if whole else rounds, whole)


@pytest.mark.parametrize("counted", [True, False])
def test_few_rounds_say_what_all_take(counted: bool):
    whole = [fit(n, 100, counted=counted) for n in (1000, 4000)]
    few = [fit(n, rounds, whole=False, counted=counted) for n in (4000, 16_000, 64_000) for rounds in (2, 5)]
    with_few, without = (
        growth_of_fits(whole, each, samples=100_000, figure=lambda one: one.cpu_s, scatter=TIME).at(100_000)
        for each in (few, [])
    )
    truth = seconds(100_000, 100)
    assert with_few.value == pytest.approx(truth, rel=0.15)
    assert with_few.low < truth < with_few.high
    assert with_few.high / with_few.low < without.high / without.low


def test_fewer_rounds_of_a_full_fit_are_shorter():
    few = [fit(n, rounds, whole=False) for n in (1000, 16_000) for rounds in (2, 5)]
    values = [
        growth_of_fits([fit(1000, made, most=made)], few, samples=16_000, figure=lambda one: one.cpu_s, scatter=TIME).at(16_000)
        for made in (50, 100)
    ]
    assert [each.value for each in values] == pytest.approx([seconds(16_000, 50), seconds(16_000, 100)], rel=0.1)


def test_iterations_grow_with_the_rows_up_to_their_limit():
    law = RoundsLaw.of([fit(n, round(n**0.5), most=400) for n in (100, 400, 1600, 6400)])
    assert law is not None
    assert 80 < law.at(25_600)[0] <= 160
    assert law.at(10**9)[0] == 400
    assert law.at(10**6)[1] > law.at(10_000)[1]
    assert RoundsLaw.of([fit(100, 60), fit(400, 100)]) == RoundsLaw(400, 100.0, 100.0, 0.0, 0.0)


class Rounds:
    """Takes seconds in proportion to its rows and rounds."""

    def __init__(self, n_estimators: int = 400, least: int = 1):
        self.n_estimators, self.least = n_estimators, least

    def get_params(self) -> dict[str, int]:
        return {"n_estimators": self.n_estimators}

    def set_params(self, *, n_estimators: int) -> Rounds:
        return Rounds(n_estimators, self.least)

    def fit(self, X: range) -> None:
        if self.n_estimators < self.least:
            raise ValueError("too few")
        self.estimators_ = [sum(X) for _ in range(self.n_estimators)]


@pytest.mark.parametrize("least", [1, 300])
def test_the_ladder_reaches_more_rows_with_few_rounds(least: int):
    fits: list[TimedFit] = []
    ladder = FitLadder(
        lambda: Rounds(least=least),
        lambda n: (range(10 * n),),
        largest=2**16,
        limit_s=0.5,
        of_processors=True,
        begins=lambda _: None,
        fitted=fits.append,
    )
    assert ladder.climb() == "limit"
    whole, few = [[each for each in fits if each.whole is kind] for kind in (True, False)]
    assert all(each.rounds == each.round_limit for each in fits)
    assert all(each.rounds == 400 for each in whole)
    if least == 1:
        assert max(each.rounds or 0 for each in few) <= 400 / 8
        assert math.prod(each.samples for each in few[-2:]) > whole[-1].samples ** 2
    else:
        assert not few


def test_trees_that_take_the_whole_limit_are_fitted_few_at_a_time():
    fits: list[TimedFit] = []
    ladder = FitLadder(
        Rounds,
        lambda n: (range(400 * n),),
        largest=2**16,
        limit_s=0.5,
        of_processors=True,
        begins=lambda _: None,
        fitted=fits.append,
    )
    assert ladder.climb() == "limit"
    assert len({each.samples for each in fits}) > 1
    assert not any(each.whole for each in fits)
