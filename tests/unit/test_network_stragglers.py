"""A slow machine among many: the interval against a simulation of many clusters."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.cost.forecast import Interval
from gpuwise.cost.network.stragglers import SLOW_SHARE, SLOWER_BY, notes, probability, with_slow_machines

STEP = Interval(1.0, 0.9, 1.15)


@pytest.mark.parametrize("machines", [2, 16, 64, 512])
def test_the_upper_end_is_the_95th_percentile_of_many_clusters(machines: int):
    generator = np.random.default_rng(0)
    slow = (generator.random((20_000, machines)) < SLOW_SHARE).any(axis=1)
    errors = np.exp(generator.normal(0, np.log(STEP.high) / 1.645, size=len(slow)))
    simulated = np.percentile(errors * np.where(slow, 1 + SLOWER_BY, 1.0), 95)
    assert with_slow_machines(STEP, machines=machines, computes=1.0).high == pytest.approx(simulated, rel=0.01)


def test_one_machine_waits_for_none():
    assert probability(1) == 0
    assert with_slow_machines(STEP, machines=1, computes=1.0) == STEP
    assert notes(1) == notes(2) == []


def test_only_computation_is_slower_and_the_value_stays():
    alone, half = (with_slow_machines(STEP, machines=4096, computes=share) for share in (0.0, 0.5))
    assert alone == STEP
    assert half.high == pytest.approx(STEP.high * (1 + SLOWER_BY / 2), rel=1e-3)
    assert (half.value, half.low) == (STEP.value, STEP.low)


def test_an_exact_forecast_still_allows_for_a_slow_machine():
    exact = Interval(1.0, 1.0, 1.0)
    assert with_slow_machines(exact, machines=64, computes=1.0).high == pytest.approx(1 + SLOWER_BY)
    assert with_slow_machines(exact, machines=8, computes=1.0).high == 1.0


def test_the_note_says_how_likely_and_whose_figure_it_is():
    (note,) = notes(64)
    assert note.kind == "slow-machines"
    assert "27 %" in note.text
    assert "MegaScale" in note.text
