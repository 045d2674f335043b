"""The growth of a figure with rows, against laws that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.plan.cpu.growth import TIME, growth_of

SIZES = [125 * 2**k for k in range(9)]  # to 32,000
LAWS = {
    "rows": lambda n: 0.02 + 3e-5 * n,
    "sort": lambda n: 0.05 + 1e-6 * n * math.log(n),
    "pairs": lambda n: 0.001 + 1e-8 * n**2,
    "rows and pairs": lambda n: 0.01 + 1e-5 * n + 1e-9 * n**2,
    "constant at first": lambda n: 1.0 + 1e-4 * n,
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("times", [4, 20])
def test_a_known_law_is_carried_on(name: str, times: int):
    law = LAWS[name]
    in_cache = replace(TIME, rise=0.0)
    growth, samples = growth_of(SIZES, [law(n) for n in SIZES], scatter=in_cache), times * SIZES[-1]
    interval = growth.at(samples)
    assert interval.low < law(samples) < interval.high
    if name != "rows and pairs":  # whose next power shows late: the interval is wide
        assert abs(math.log(interval.value / law(samples))) < 0.4


@pytest.mark.parametrize("noise", [(1.0, 1.0, 1.0, 1.0), (1.1, 0.9, 1.05, 0.95), (0.9, 1.2, 1.0, 0.85), (1.2, 1.0, 0.95, 0.9)])
def test_rows_that_hide_behind_a_constant_cost_are_inside_the_interval(noise: tuple[float, ...]):
    sizes = [100, 200, 400, 800]
    values = [factor * (3e-3 + 4e-7 * n) for factor, n in zip(noise, sizes, strict=True)]
    interval = growth_of(sizes, values).at(1e6)
    assert interval.low < interval.value < interval.high
    assert interval.low < 3e-3 + 4e-7 * 1e6 < interval.high


def test_a_jump_is_no_steep_law():
    # Factor analysis of 20 columns, as a second thread joined and spun; on 200,000 rows it took 6.75 s.
    interval = growth_of([195, 781, 1940, 3125], [4e-3, 37e-3, 96e-3, 26e-3]).at(200_000)
    assert interval.low < 6.75 < interval.high
    assert 6.75 / 5 < interval.value < 6.75 * 5


def test_a_cube_that_sizes_show_is_carried_on():
    sizes = [250, 500, 1000, 2000, 4000]
    interval = growth_of(sizes, [1e-3 + 2e-11 * n**3 for n in sizes], scatter=replace(TIME, rise=0.0)).at(16_000)
    assert interval.low < 2e-11 * 16_000**3 < interval.high
    assert interval.value > 2e-11 * 16_000**3 / 2


def test_more_rows_are_less_certain():
    growth = growth_of(SIZES, [LAWS["rows"](n) for n in SIZES])
    spreads = [math.log(at.high / at.low) for at in map(growth.at, (SIZES[-1], 4 * SIZES[-1], 100 * SIZES[-1]))]
    assert spreads == sorted(spreads)


def test_exponents_are_local():
    assert growth_of(SIZES, [1e-6 * n for n in SIZES]).exponent_at(1e6) == pytest.approx(1, abs=0.2)
    assert growth_of(SIZES, [1e-9 * n**2 for n in SIZES]).exponent_at(1e6) == pytest.approx(2, abs=0.2)


def test_rows_within_a_limit_end_there():
    growth = growth_of(SIZES, [1e-4 * n for n in SIZES])
    rows = growth.samples_within(10.0, most=10**9)
    assert growth.at(rows).value <= 10.0 < growth.at(rows + 1).value
    assert growth.samples_within(10.0, most=500) == 500
    assert growth.samples_within(1e-12, most=500) == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-4, 1e3), min_size=2, max_size=9), st.floats(1, 1e3))
def test_any_times_have_a_growth_that_never_falls(times: list[float], factor: float):
    growth = growth_of(SIZES[: len(times)], times)
    nearer, farther = growth.at(SIZES[-1]), growth.at(SIZES[-1] * factor)
    assert 0 < nearer.low <= nearer.value <= nearer.high
    assert nearer.value <= farther.value * (1 + 1e-9)
    scaled = growth.scaled(3.0).at(SIZES[-1])
    assert np.allclose([scaled.low, scaled.value, scaled.high], [3 * nearer.low, 3 * nearer.value, 3 * nearer.high])


@pytest.mark.parametrize(("rows", "times"), [([100], [1.0]), ([100, 200], [1.0, 0.0])])
def test_what_is_no_growth_is_refused(rows: list[int], times: list[float]):
    with pytest.raises(ValueError, match="a growth takes"):
        growth_of(rows, times)
