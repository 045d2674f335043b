"""Objectives, the Pareto front and the chances to keep the limits, against brute force and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.plan.ranking.chance import Spreads, chance_inside, normal_cdf
from gpuwise.plan.ranking.columns import PlanColumns
from gpuwise.plan.ranking.front import pareto_front
from gpuwise.plan.ranking.objectives import ranked
from gpuwise.plan_settings import OBJECTIVES

PINNED = settings(max_examples=200, deadline=None)
# few values, so that ties are frequent
cost = st.one_of(st.integers(0, 4).map(float), st.floats(0, 10), st.just(math.nan), st.just(math.inf))
costs = st.lists(st.tuples(cost, cost, cost), max_size=30)


def columns_of(rows: list[tuple[float, ...]]) -> PlanColumns:
    return PlanColumns(*np.array(rows, dtype=float).reshape(-1, 5).T)


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@PINNED
@given(rows=costs)
def test_the_front_is_what_no_other_row_beats(rows):
    known = [tuple(math.inf if math.isnan(value) else value for value in row) for row in rows]
    expected = [
        math.isfinite(row[0]) and math.isfinite(row[1]) and not any(beats(other, row) for other in known) for row in known
    ]
    front = pareto_front(*np.array(rows, dtype=float).reshape(-1, 3).T)
    assert front.tolist() == expected


def test_the_front_of_many_rows():
    rows = np.random.default_rng(0).random((3, 400)).round(2)
    front = pareto_front(*rows)
    beaten = [any(beats(tuple(other), tuple(row)) for other in rows.T) for row in rows.T]
    assert front.tolist() == [not each for each in beaten]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_minimises_its_column(objective):
    #                 hours    usd   joules  bytes  usd a sample
    rows = columns_of([(1, 50, 5, 5, 5), (5, 10, 5, 5, 5), (5, 50, 1, 5, 5), (5, 50, 5, 1, 5), (5, 50, 5, 5, 1)])
    first = {"fastest": 0, "cheapest": 1, "least-energy": 2, "least-memory": 3, "samples-per-dollar": 4}
    assert ranked(rows, objective)[0] == first[objective]


@PINNED
@given(rows=st.lists(st.tuples(*[st.integers(1, 3).map(float)] * 5), min_size=1, max_size=12), data=st.data())
def test_ties_go_to_the_cheaper_then_the_faster_then_the_earlier(rows, data):
    objective = data.draw(st.sampled_from(OBJECTIVES))
    tier = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    index = {"fastest": 0, "cheapest": 1, "least-energy": 2, "least-memory": 3, "samples-per-dollar": 4}[objective]
    expected = sorted(range(len(rows)), key=lambda i: (tier[i], rows[i][index], rows[i][1], rows[i][0], i))
    assert ranked(columns_of(rows), objective, tier=np.array(tier)).tolist() == expected


def test_a_cent_is_no_difference_and_the_unknown_is_last():
    rows = columns_of([(9, 10.001, math.nan, 1, 1), (3, 10.004, 2, 1, 1), (3, 10.1, 1, 1, 1)])
    assert ranked(rows, "cheapest").tolist() == [1, 0, 2]
    assert ranked(rows, "least-energy").tolist() == [2, 1, 0]


def test_the_normal_distribution():
    z = np.linspace(-6, 6, 241)
    exact = [0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z]
    assert np.abs(normal_cdf(z) - exact).max() < 1e-7
    assert normal_cdf(np.array([-np.inf, np.inf])).tolist() == [0, 1]


def one(**figures: float) -> Spreads:
    names = ("hours", "usd", "log_hours", "log_price", "usd_follows")
    return Spreads(*(np.array([figures[name]]) for name in names))


@pytest.mark.parametrize("follows", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("log_price", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("deadline_h", "budget_usd"), [(24.0, 250.0), (30.0, 180.0), (22.0, 900.0), (None, 220.0), (19.0, None)]
)
def test_the_chance_against_monte_carlo(follows, log_price, deadline_h, budget_usd):
    rng = np.random.default_rng(7)
    draws, hours, usd, log_hours = 400_000, 20.0, 200.0, 0.25
    time = np.exp(rng.normal(0, log_hours, draws))
    price = np.exp(rng.normal(0, log_price, draws)) if log_price else np.ones(draws)
    inside = (hours * time <= (deadline_h or math.inf)) & (usd * price * time**follows <= (budget_usd or math.inf))
    spreads = one(hours=hours, usd=usd, log_hours=log_hours, log_price=log_price, usd_follows=follows)
    chance = chance_inside(spreads, deadline_h=deadline_h, budget_usd=budget_usd)
    assert chance[0] == pytest.approx(inside.mean(), abs=0.012)


def test_what_costs_nothing_keeps_every_budget():
    free = one(hours=20.0, usd=0.0, log_hours=0.2, log_price=0.0, usd_follows=1.0)
    assert chance_inside(free, deadline_h=None, budget_usd=0.0)[0] == 1.0
    assert chance_inside(free, deadline_h=20.0, budget_usd=0.0)[0] == pytest.approx(0.5, abs=1e-6)
    certain = one(hours=20.0, usd=5.0, log_hours=0.0, log_price=0.0, usd_follows=1.0)
    assert chance_inside(certain, deadline_h=21.0, budget_usd=6.0)[0] == 1.0
    assert chance_inside(certain, deadline_h=21.0, budget_usd=4.0)[0] == 0.0


@PINNED
@given(
    deadline=st.floats(1, 100),
    later=st.floats(0, 100),
    budget=st.floats(1, 1000),
    more=st.floats(0, 1000),
    price=st.floats(0, 1),
)
def test_looser_limits_are_never_less_likely_kept(deadline, later, budget, more, price):
    spreads = one(hours=20.0, usd=200.0, log_hours=0.2, log_price=price, usd_follows=1.0)
    tight = chance_inside(spreads, deadline_h=deadline, budget_usd=budget)[0]
    assert 0 <= tight <= chance_inside(spreads, deadline_h=deadline + later, budget_usd=budget + more)[0] <= 1 + 1e-9
