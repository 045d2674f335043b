"""The simulated server against queueing theory."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.serving.arrivals import bursty, daily, poisson
from gpuwise.serving.continuous import serve
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.saturation import Limits, saturation_rate
from gpuwise.serving.windowed import WindowPolicy, serve_batches

ONE = BatchingPolicy(batched_tokens=1 << 40, sequences=1, cache_tokens=1 << 50)
SERVICE_S = 0.02


def of_prompts_alone(chunks, sequences, past_tokens):
    """Seconds in proportion to the prompts: with one token written, the time of a request is that of its prompt."""
    return SERVICE_S / 1e6 * sum(new for new, _ in chunks)


def arrivals(rate: float, *, count: int, rng: np.random.Generator) -> np.ndarray:
    """Poisson arrivals whose own mean rate is exact, which takes most of the sampling error away."""
    arrival_s = poisson(rate, count=count, rng=rng)
    return arrival_s * (count / rate / arrival_s[-1])


def one_token(arrival_s, input_tokens) -> Requests:
    return requests(arrival_s, input_tokens, np.ones(len(arrival_s), np.int64))


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_m_d_1(load: float):
    """Mean wait of constant service: load / (2 (1 - load)) services (Pollaczek and Khinchine)."""
    rng = np.random.default_rng(1)
    count = 400_000
    served = serve_batches(
        one_token(arrivals(load / SERVICE_S, count=count, rng=rng), np.ones(count, np.int64)),
        lambda size, longest: SERVICE_S,
        WindowPolicy(batch=1),
    )
    assert np.mean(served.latency_s) == pytest.approx(SERVICE_S * (1 + load / (2 * (1 - load))), rel=0.01)
    assert served.utilisation == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_m_m_1(load: float):
    """Mean time in the system of exponential service: service / (1 - load); its 99th percentile is ln(100) times that."""
    rng = np.random.default_rng(2)
    count = 400_000
    prompts = rng.exponential(1e6, count)
    prompts = np.maximum(1, prompts * (1e6 / prompts.mean())).astype(np.int64)
    served = serve(one_token(arrivals(load / SERVICE_S, count=count, rng=rng), prompts), of_prompts_alone, ONE)
    assert np.mean(served.latency_s) == pytest.approx(SERVICE_S / (1 - load), rel=0.01)
    assert np.quantile(served.latency_s, 0.99) == pytest.approx(np.log(100) * SERVICE_S / (1 - load), rel=0.02)


def test_littles_law():
    """Requests in the system on average are their rate times the time that each spends there, in any system."""
    rng = np.random.default_rng(3)
    count = 2_000
    load = requests(bursty(20.0, count=count, variation=2.0, rng=rng), rng.integers(1, 800, count), rng.integers(1, 200, count))
    served = serve(
        load,
        lambda chunks, sequences, past: 0.005 + 1e-5 * (sequences + sum(n for n, _ in chunks)) + 1e-8 * past,
        BatchingPolicy(batched_tokens=512, sequences=64, cache_tokens=60_000),
    )
    events = np.concatenate([np.stack([load.arrival_s, np.ones(count)], 1), np.stack([served.end_s, -np.ones(count)], 1)])
    events = events[np.argsort(events[:, 0])]
    inside = np.cumsum(events[:-1, 1])
    mean_inside = np.sum(inside * np.diff(events[:, 0])) / (events[-1, 0] - events[0, 0])
    span = events[-1, 0] - events[0, 0]
    assert mean_inside == pytest.approx(count / span * np.mean(served.latency_s), rel=1e-9)


def test_lindleys_recursion():
    """With one sequence at a time, each request waits for what the one before has left: exact, request by request."""
    rng = np.random.default_rng(4)
    count = 5_000
    arrival_s = poisson(30.0, count=count, rng=rng)
    prompts = rng.integers(1, 2_000_000, count)
    served = serve(one_token(arrival_s, prompts), of_prompts_alone, ONE)
    wait_s, waits = 0.0, []
    for gap, prompt in zip(np.diff(arrival_s), prompts[:-1], strict=True):
        waits.append(wait_s)
        wait_s = max(0.0, wait_s + SERVICE_S / 1e6 * prompt - gap)
    waits.append(wait_s)
    np.testing.assert_allclose(served.ttft_s, np.array(waits) + SERVICE_S / 1e6 * prompts, rtol=1e-6, atol=1e-9)


def test_empty_and_overloaded():
    nothing = one_token(np.zeros(0), np.zeros(0, np.int64))
    served = serve(nothing, of_prompts_alone, ONE)
    assert (len(served.end_s), served.iterations, served.utilisation, served.share_within(ttft_s=1)) == (0, 0, 0.0, 1.0)
    # Twice what the server can do: the wait grows by half a second a second, and the server is never idle.
    count = 10_000
    load = one_token(np.arange(count) * SERVICE_S / 2, np.full(count, 1_000_000))
    served = serve(load, of_prompts_alone, ONE)
    assert served.utilisation == pytest.approx(1.0)
    assert served.ttft_s[-1] == pytest.approx(count * SERVICE_S / 2, rel=0.01)


def test_the_saturation_rate_of_a_queue_without_limits_on_waiting_is_its_capacity():
    rng = np.random.default_rng(5)
    count = 20_000
    at_one = poisson(1.0, count=count, rng=rng)

    def served_at(rate: float):
        return serve_batches(
            one_token(at_one / rate, np.ones(count, np.int64)), lambda size, longest: SERVICE_S, WindowPolicy(batch=1)
        )

    # Limits of 200 services hold up to almost the whole capacity, 1 / SERVICE_S; below one service no rate holds.
    rate = saturation_rate(served_at, Limits(latency_s=200 * SERVICE_S, share=0.99), start=1.0)
    assert rate == pytest.approx(1 / SERVICE_S, rel=0.03)
    assert saturation_rate(served_at, Limits(latency_s=0.9 * SERVICE_S), start=1.0) == 0.0


def test_batches_share_their_time():
    """Requests that all arrive at once in batches of 8 end batch after batch."""
    load = one_token(np.zeros(64), np.ones(64, np.int64))
    served = serve_batches(load, lambda size, longest: 0.1 + 0.01 * size, WindowPolicy(batch=8))
    np.testing.assert_allclose(served.end_s, np.repeat(np.arange(1, 9) * 0.18, 8))
    # One alone waits for the window; a second in it joins, and a full batch does not wait.
    alone = one_token(np.array([0.0, 0.01, 5.0]), np.ones(3, np.int64))
    served = serve_batches(alone, lambda size, longest: 0.1, WindowPolicy(batch=8, window_s=0.05))
    np.testing.assert_allclose(served.end_s, [0.15, 0.15, 5.15])
    served = serve_batches(alone, lambda size, longest: 0.1, WindowPolicy(batch=2, window_s=0.05))
    np.testing.assert_allclose(served.end_s, [0.11, 0.11, 5.15])


def test_a_full_queue_turns_requests_away():
    load = one_token(np.arange(100) * 0.001, np.full(100, 1_000_000))
    served = serve(load, of_prompts_alone, BatchingPolicy(1 << 40, sequences=1, cache_tokens=1 << 50, queue=3))
    assert served.turned_away > 80
    assert served.share_within() == pytest.approx(1 - served.turned_away / 100)


@pytest.mark.parametrize(("sequences", "queue"), [(2, 3), (3, 2), (1, 0), (4, 0)])
def test_of_requests_that_come_at_once_as_many_are_answered_as_run_and_wait(sequences: int, queue: int):
    load = one_token(np.zeros(60), np.full(60, 1_000))
    policy = BatchingPolicy(1 << 40, sequences=sequences, cache_tokens=1 << 50, queue=queue)
    assert serve(load, of_prompts_alone, policy).turned_away == 60 - sequences - queue


def test_a_days_curve_keeps_its_mean_and_its_shape():
    rng = np.random.default_rng(6)
    arrival_s = daily(2.0, weights=[1] * 12 + [3] * 12, days=2, rng=rng)
    assert len(arrival_s) == pytest.approx(2.0 * 2 * 86_400, rel=0.02)
    night = np.sum(arrival_s % 86_400 < 43_200)
    assert night / len(arrival_s) == pytest.approx(0.25, rel=0.02)


def test_clients_at_a_fixed_concurrency_send_the_next_request_at_once():
    """Closed loop: N clients and service of one at a time: the rate is that of the server, the latency N services."""
    count, clients = 1_000, 7
    load = one_token(np.zeros(count), np.full(count, 1_000_000))
    served = serve(load, of_prompts_alone, ONE, concurrency=clients)
    assert served.span_s == pytest.approx(count * SERVICE_S)
    assert np.median(served.latency_s) == pytest.approx(clients * SERVICE_S)


def test_littles_law_of_clients_that_wait_for_their_answers():
    """Clients are the requests in the system: their number is the rate times the time that each spends there."""
    loads = LoadShape(Lengths(400, 100, input_variation=0.5, output_variation=0.5))
    instance = Instance(
        lambda chunks, sequences, past: 0.005 + 1e-5 * (sequences + sum(n for n, _ in chunks)) + 1e-8 * past,
        BatchingPolicy(batched_tokens=512, sequences=64, cache_tokens=60_000),
        (1.0, 1.0),
    )
    for clients in (1, 8, 200):  # the last ones wait for a place
        served = instance.served_to(clients, loads)
        first_s, last_s = served.requests.arrival_s[0], float(np.quantile(served.end_s, 0.9))  # all clients still send
        inside_s = np.minimum(served.end_s, last_s) - np.minimum(served.requests.arrival_s, last_s)
        assert inside_s.sum() / (last_s - first_s) == pytest.approx(clients, rel=1e-9)
