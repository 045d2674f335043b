"""Servers of forward passes against queueing theory and brute force."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cost.forecast import Interval
from gpuwise.serving.forward_instance import CLOSE, ForwardInstance, best_batches, rate_bound
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving.requests import Requests
from gpuwise.serving.saturation import Limits
from gpuwise.serving.windowed import WindowPolicy

SERVICE_S = 0.02
LOADS = LoadShape(Lengths(1, 1))


@dataclass(frozen=True)
class LongLoads(LoadShape):
    """Loads so long that chance hardly moves their percentiles."""

    def at(self, rate_per_s: float, *, count: int = 40_000) -> Requests:
        return super().at(rate_per_s, count=count)


LONG = LongLoads(Lengths(1, 1))


def table(seconds: dict[int, float]) -> ForwardTimes:
    return ForwardTimes({size: Interval(value, value / 2, value * 2) for size, value in seconds.items()})


def instances(times: ForwardTimes, *, window_s: float = 0.0, copies: int = 1) -> list[ForwardInstance]:
    return [ForwardInstance(times, WindowPolicy(batch, window_s), copies) for batch in sorted(times.passes)]


def share_that_waits_at_most(wait_s: float, *, load: float) -> float:
    """Of an M/D/1 queue (Erlang): (1 - load) * sum of (-x)^k e^x / k! over k services, with x = rate * (wait - k services)."""
    rate, total = load / SERVICE_S, 0.0
    for k in range(int(wait_s / SERVICE_S) + 1):
        x = rate * (wait_s - k * SERVICE_S)
        total += (-x) ** k * exp(x) / factorial(k)
    return (1 - load) * total


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("copies", [1, 4])
def test_one_request_a_pass_is_m_d_1(load: float, copies: int):
    """Mean wait: load / (2 (1 - load)) services (Pollaczek and Khinchine)."""
    instance = ForwardInstance(table({1: SERVICE_S}), WindowPolicy(1), copies)
    arrivals = LONG.at(copies * load / SERVICE_S, count=400_000)
    rate = len(arrivals) / arrivals.arrival_s[-1]
    own_load = rate * SERVICE_S / copies
    latency_s = instance.served(arrivals).latency_s
    assert np.mean(latency_s) == pytest.approx(SERVICE_S * (1 + own_load / (2 * (1 - own_load))), rel=0.02)
    for wait in (0.5, 1.5, 2.5):
        share = np.mean(latency_s <= SERVICE_S * (1 + wait) * (1 + 1e-9))
        assert share == pytest.approx(share_that_waits_at_most(wait * SERVICE_S, load=own_load), abs=0.005)


@pytest.mark.parametrize("services", [2.0, 3.5, 6.0])
def test_the_rate_within_a_limit_is_that_of_m_d_1(services: float):
    instance = ForwardInstance(table({1: SERVICE_S}), WindowPolicy(1))
    rate = instance.saturation_rate(LONG, Limits(latency_s=services * SERVICE_S))
    share = share_that_waits_at_most((services - 1) * SERVICE_S, load=rate * SERVICE_S)
    assert share == pytest.approx(0.99, abs=0.003)


def pass_tables() -> st.SearchStrategy[ForwardTimes]:
    """Passes as devices have them: what launches take, then what the samples take, with kernels that waste some of it."""

    def of(launch_s: float, sample_s: float, waste: list[float]) -> ForwardTimes:
        return table({2**i: max(launch_s, sample_s * 2**i) * (1 + each) for i, each in enumerate(waste)})

    seconds = st.floats(1e-4, 0.05)
    return st.builds(of, seconds, seconds, st.lists(st.floats(0, 0.3), min_size=1, max_size=7))


@given(pass_tables())
@settings(max_examples=50, deadline=None)
def test_without_limits_the_highest_rate_is_the_best_batch_over_its_time(times: ForwardTimes):
    best, rate = best_batches(instances(times), LOADS, Limits())
    highest = max(size / times.pass_s(size) for size in times.passes)
    assert (1 - CLOSE) * highest <= rate <= highest * (1 + 1e-9)
    assert rate == pytest.approx(best.capacity)
    assert rate_bound(times, Limits()) == pytest.approx(highest)


@given(pass_tables(), st.floats(1.0, 20.0))
@settings(max_examples=12, deadline=None)
def test_the_batch_is_nearly_the_best_of_all(times: ForwardTimes, passes: float):
    """Against the saturation rate of every batch. One load gives a rate to a few per cent."""
    limits = Limits(latency_s=passes * times.pass_s(1))
    each = {one.policy.batch: one.saturation_rate(LOADS, limits) for one in instances(times)}
    best, rate = best_batches(instances(times), LOADS, limits)
    assert rate >= (1 - 2 * CLOSE) * max(each.values())
    assert rate <= max(each.values()) * 1.02
    assert max(each.values()) <= rate_bound(times, limits) * (1 + 1e-9)
    assert best.policy.batch in times.passes


@given(pass_tables(), st.floats(2.0, 20.0), st.sampled_from([0.1, 0.5, 1.0]))
@settings(max_examples=12, deadline=None)
def test_waiting_while_idle_serves_no_more(times: ForwardTimes, passes: float, window: float):
    """Why windows are not searched: a busy server fills its batches by itself."""
    limits = Limits(latency_s=passes * times.pass_s(1))
    _, rate = best_batches(instances(times), LOADS, limits)
    _, waiting = best_batches(instances(times, window_s=window * times.pass_s(1)), LOADS, limits)
    assert waiting <= rate * 1.1


def test_nothing_serves_where_a_pass_alone_is_too_slow():
    times = table({1: 0.1, 2: 0.15})
    assert rate_bound(times, Limits(latency_s=0.09)) == 0.0
    assert best_batches(instances(times), LOADS, Limits(latency_s=0.09))[1] == 0.0
    window = instances(times, window_s=0.05)
    assert window[0].alone(LOADS).latency_s == pytest.approx([0.1])  # a full batch does not wait
    assert window[1].alone(LOADS).latency_s == pytest.approx([0.15])


def test_copies_serve_shares():
    times = table({1: 0.01, 8: 0.02})
    limits = Limits(latency_s=0.05)
    one, four = ForwardInstance(times, WindowPolicy(8)), ForwardInstance(times, WindowPolicy(8), 4)
    assert four.capacity == 4 * one.capacity
    assert four.saturation_rate(LOADS, limits) == pytest.approx(4 * one.saturation_rate(LOADS, limits))
    a, b = one.served(LOADS.at(100.0)), four.served(LOADS.at(400.0))
    np.testing.assert_allclose(a.latency_s, b.latency_s, atol=1e-9)
