"""Expected times under interruptions against simulated runs, and the best time between checkpoints against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuwise.plan.economics.interruptions import DAY_S, InterruptionColumns, best_interval_s, expected_s, steady_factor
from gpuwise.plan.economics.spot import daly_interval_s
from gpuwise.plan.economics.terms import HOUR_S

RUNS = 2000
PLAIN = {"per_day": 3.0, "day_machines": 0.0, "save_s": 200.0, "restart_s": 900.0}
DAY = {"per_day": 0.0, "day_machines": 1.0, "save_s": 200.0, "restart_s": 900.0}
BOTH = {"per_day": 0.5, "day_machines": 2.0, "save_s": 60.0, "restart_s": 600.0}


def lifetimes(how, count, rng):
    """Drawn by inverting S on a fine grid, as S is written in the paper, apart from the code under test."""
    hours = np.linspace(0, 24, 20001)
    bathtub = np.clip(1 - 0.45 * (1 - np.exp(-hours) + np.exp((hours - 24) / 0.8)), 0, 1)
    alive = bathtub ** how["day_machines"] * np.exp(-how["per_day"] * hours / 24)
    if how["day_machines"] == 0:
        return rng.exponential(DAY_S / how["per_day"], count)
    drawn = rng.random(count)
    return np.where(drawn < alive[-1], 24.0, np.interp(-drawn, -alive, hours)) * HOUR_S


def simulated(work_s, parts, how, rng):
    """Mean and standard error of the time of RUNS runs, step by step."""
    part, save, restart = work_s / parts, how["save_s"], how["restart_s"]
    left, clock, first = np.full(RUNS, parts), np.zeros(RUNS), True
    while (left > 0).any():
        busy = np.flatnonzero(left > 0)
        lived = lifetimes(how, len(busy), rng)
        start = 0.0 if first else restart
        needs = start + left[busy] * (part + save) - save
        ends = lived >= needs
        saved = np.clip(np.floor((lived - start) / (part + save)), 0, left[busy] - 1).astype(int)
        clock[busy] += np.where(ends, needs, lived)
        left[busy] -= np.where(ends, left[busy], saved)
        first = False
    return clock.mean(), clock.std() / np.sqrt(RUNS)


@pytest.mark.parametrize("how", [PLAIN, DAY, BOTH], ids=["constant hazard", "24 hours", "both"])
@pytest.mark.parametrize(("hours", "parts"), [(1.0, 1), (6.0, 3), (30.0, 20), (150.0, 100), (400.0, 300)])
def test_the_expected_time_is_the_mean_of_simulated_runs(how, hours, parts):
    work = hours * HOUR_S
    total, _ = expected_s(np.array([work]), np.array([work / parts]), InterruptionColumns(**how))
    mean, error = simulated(work, parts, how, np.random.default_rng(0))
    assert float(total[0]) == pytest.approx(mean, abs=4 * error + 0.002 * mean)


@pytest.mark.parametrize("how", [PLAIN, DAY, BOTH], ids=["constant hazard", "24 hours", "both"])
def test_the_best_interval_is_the_best_of_all(how):
    columns = InterruptionColumns(**how)
    best = best_interval_s(columns)
    least = steady_factor(best, columns)[0]
    brute = min(steady_factor(np.array([tau]), columns)[0] for tau in np.geomspace(30, DAY_S, 2000))
    assert least <= brute * (1 + 2e-4)


def test_at_constant_hazard_it_is_dalys_model_and_close_to_dalys_interval():
    columns = InterruptionColumns(**PLAIN)
    between = DAY_S / PLAIN["per_day"]
    work, tau = 100 * HOUR_S, 5000.0
    total, count = expected_s(np.array([work]), np.array([tau]), columns)
    dalys = between * math.exp(900 / between) * math.expm1((tau + 200) / between) * work / tau  # Daly (2006)
    assert float(total[0]) == pytest.approx(dalys, rel=0.002)  # Daly saves after the last part, too
    assert float(count[0]) == pytest.approx(float(total[0]) / between)
    assert best_interval_s(columns)[0] == pytest.approx(daly_interval_s(200.0, between), rel=0.01)


def test_more_machines_are_interrupted_more_often():
    machines = np.array([1.0, 2, 8, 64])
    rows = np.ones(4)
    for per_day, day in ((machines, 0 * rows), (0 * rows, machines)):
        columns = InterruptionColumns(per_day, day, 60 * rows, 600 * rows)
        total, count = expected_s(50 * HOUR_S * rows, best_interval_s(columns), columns)
        assert (np.diff(total) > 0).all()
        assert (np.diff(count) > 0).all()


def test_rows_do_not_mix():
    rng = np.random.default_rng(1)
    rows = 60
    columns = InterruptionColumns(
        rng.choice([0.0, 0.01, 3.0], rows),
        rng.choice([0.0, 1.0, 4.0], rows),
        rng.uniform(1, 600, rows),
        rng.uniform(60, 900, rows),
    )
    work = rng.uniform(60, 400 * HOUR_S, rows)
    interval = best_interval_s(columns)
    total, _ = expected_s(work, interval, columns)
    for row in range(0, rows, 7):
        chosen = np.arange(rows) == row
        one = columns.rows(chosen)
        assert best_interval_s(one)[0] == pytest.approx(interval[row], rel=1e-9)
        assert expected_s(work[chosen], interval[chosen], one)[0][0] == pytest.approx(total[row], rel=1e-9)
    assert (total >= work).all()


def test_what_never_ends_is_infinite():
    columns = InterruptionColumns(0.0, 1.0, 25 * HOUR_S, 600.0)
    assert expected_s(np.array([1e6]), np.array([1e4]), columns)[0][0] == np.inf
    columns = InterruptionColumns(1e5, 0.0, 60.0, 600.0)
    assert expected_s(np.array([1e9]), np.array([1e9]), columns)[0][0] == np.inf


def test_nothing_interrupts_nothing():
    columns = InterruptionColumns(0.0, 0.0, 60.0, 600.0)
    assert best_interval_s(columns)[0] == np.inf
    assert expected_s(np.array([777.0]), best_interval_s(columns), columns)[0][0] == 777.0


def test_short_runs_beside_long_ones_take_no_more_memory():
    rows = np.ones(300)
    columns = InterruptionColumns(0 * rows, rows, 0.01 * rows, 600 * rows)
    work = np.where(np.arange(300) % 2, 1e-3, 1e7)
    total, _ = expected_s(work, best_interval_s(columns), columns)
    assert np.isfinite(total).all()
