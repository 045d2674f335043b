"""Servers on one line against serve_groups, an event loop of small steps, and M/D/c queues."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.serving.line import serve_line
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.windowed import ServerCosts, WindowPolicy, serve_groups


def load_of(arrivals: list[float], tokens: list[int] | None = None) -> Requests:
    count = len(arrivals)
    return requests(np.sort(np.array(arrivals, float)), np.array(tokens or [1] * count), np.ones(count, int))


def seconds_of(load: Requests):
    """A pass is as long as its longest request, and 1 s for each of them."""

    def of_group(group):
        seconds = float(load.input_tokens[group].max() + len(group))
        return seconds, seconds

    return of_group


def by_small_steps(load: Requests, group_s, policy: WindowPolicy, servers: int, bucket_of: list[int]) -> np.ndarray:
    """Looks at the line at every whole second: times are whole seconds."""
    busy_until, waiting, end_s = [0] * servers, list[int](), np.full(len(load), np.nan)
    arrivals = load.arrival_s.astype(int).tolist()
    now, coming = 0, 0
    while np.isnan(end_s).any():
        while coming < len(load) and arrivals[coming] == now:
            waiting.append(coming)
            coming += 1
        for server in range(servers):
            if busy_until[server] > now or not waiting:
                continue
            together = [each for each in waiting if bucket_of[each] == bucket_of[waiting[0]]][: policy.batch]
            if len(together) < policy.batch and now < arrivals[waiting[0]] + policy.window_s:
                continue
            seconds = int(group_s(together)[1])
            busy_until[server] = now + seconds
            end_s[together] = now + seconds
            waiting = [each for each in waiting if each not in together]
        now += 1
    return end_s


LOADS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=25)


@given(LOADS, st.integers(1, 4), st.integers(0, 7), st.integers(1, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_line_is_that_of_small_steps(drawn, batch: int, window: int, servers: int, buckets: bool):
    drawn = sorted(drawn)
    load = load_of([float(at) for at, _ in drawn], [tokens for _, tokens in drawn])
    bucket_of = [tokens // 4 if buckets else 0 for _, tokens in drawn]
    policy, group_s = WindowPolicy(batch, float(window)), seconds_of(load)
    served = serve_line(load, group_s, policy, servers=servers, bucket_of=bucket_of)
    assert np.array_equal(served.end_s, by_small_steps(load, group_s, policy, servers, bucket_of))


@given(LOADS, st.integers(1, 5), st.floats(0, 5))
@settings(max_examples=100, deadline=None)
def test_one_server_is_serve_groups(drawn, batch: int, window: float):
    drawn = sorted(drawn)
    load = load_of([float(at) for at, _ in drawn], [tokens for _, tokens in drawn])
    policy, costs = WindowPolicy(batch, window), ServerCosts((0.1, 0.5), 0.01, (0.9, 1.0, 1.3))
    ours = serve_line(load, seconds_of(load), policy, costs=costs)
    theirs = serve_groups(load, seconds_of(load), policy, costs=costs)
    assert np.array_equal(ours.end_s, theirs.end_s)
    assert (ours.iterations, ours.busy_s) == (theirs.iterations, theirs.busy_s)


def wait_of_m_d_c(servers: int, load: float) -> float:
    """Mean wait of an M/D/c queue in services, by the stationary numbers of requests one service apart (Crommelin 1932)."""
    states, offered = 300, servers * load
    arrive = [exp(-offered)]
    for k in range(1, states):
        arrive.append(arrive[-1] * offered / k)
    shares = np.full(states, 1 / states)
    for _ in range(4000):
        left = np.concatenate([[shares[: servers + 1].sum()], shares[servers + 1 :]])
        shares = np.convolve(left, arrive)[:states]
        shares /= shares.sum()
    waiting = float(np.maximum(np.arange(states) - servers, 0) @ shares)
    return waiting / offered  # Little's law of those who wait


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_one_request_a_pass_is_m_d_c(servers: int, share: float):
    rng = np.random.default_rng(1)
    arrival_s = np.cumsum(rng.exponential(1 / (servers * share), 200_000))
    served = serve_line(load_of(arrival_s.tolist()), lambda group: (1.0, 1.0), WindowPolicy(1), servers=servers)
    real = len(arrival_s) / arrival_s[-1] / servers
    assert np.mean(served.latency_s) - 1 == pytest.approx(wait_of_m_d_c(servers, real), rel=0.04, abs=1e-3)
    assert served.utilisation == pytest.approx(real, rel=0.01)
