"""Users who wait for their answers: against the interactive response time law, and what brute force has."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.unit.test_api_serving import job

from gpuwise.api.serving import serve_plan
from gpuwise.api.serving_arrivals import planned_load
from gpuwise.errors import FileFormatError, InputError
from gpuwise.serving.bounds import LoadMeans, clients_bound, rate_bound
from gpuwise.serving.closed_loop import most_clients, narrowing, row_of_clients, served_steadily
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.saturation import Limits

LOAD = LoadShape(Lengths(100, 40))


def iteration_s(chunks, sequences, past_tokens):
    return 0.004 + 1e-4 * (sequences + sum(new for new, _ in chunks))


INSTANCE = Instance(iteration_s, BatchingPolicy(batched_tokens=512, sequences=64, cache_tokens=100_000), (0.9, 1.2))


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 8, 9, 63, 100, 999, 1000])
def test_the_most_users_within_limits_are_those_of_brute_force(limit: int):
    calls: list[int] = []

    def within(clients: int) -> bool:
        calls.append(clients)
        return clients <= limit

    assert most_clients(within, 1000) == limit
    assert len(calls) <= 14
    assert most_clients(within, 1) == min(limit, 1)


def test_one_user_has_the_instance_alone():
    """40 iterations: one that reads 100 tokens, and 39 that write one each."""
    request_s = iteration_s([(100, 0)], 0, 0) + 39 * iteration_s([], 1, 0)
    served, reached = served_steadily(INSTANCE, LOAD, 1)
    assert reached == pytest.approx(1 / request_s)
    assert served.latency_s == pytest.approx(request_s)
    slower, reached = served_steadily(INSTANCE, LOAD, 1, factor=2.0)
    assert reached == pytest.approx(0.5 / request_s)
    assert slower.latency_s == pytest.approx(2 * request_s)


def test_littles_law_of_users():
    """Users are their rate times the time that each request takes; beyond the batch more of them only wait."""
    load = LoadShape(Lengths(100, 40, input_variation=0.5, output_variation=0.5))
    rates = []
    for clients in (4, 32, 128, 256):
        served, reached = served_steadily(INSTANCE, load, clients)
        assert reached * np.mean(served.latency_s) == pytest.approx(clients, rel=0.05)
        rates.append(reached)
    assert rates[0] < rates[1] < rates[2]
    assert rates[3] == pytest.approx(rates[2], rel=0.03)


def test_instances_are_as_many_as_keep_each_users_within_the_limits():
    limits = Limits(tpot_s=0.008)
    row = row_of_clients("d", INSTANCE, LOAD, limits, clients=100, weight_bytes=1, usd_per_hour=2.0)
    most = max(n for n in range(1, 65) if limits.hold(served_steadily(INSTANCE, LOAD, n)[0]))
    assert row.replicas == math.ceil(100 / most)
    assert row.clients == math.ceil(100 / row.replicas)
    assert row.latency["tpot_s"].p99.value <= 0.008
    assert row.usd_per_hour == 2.0 * row.replicas
    assert row.usd_per_request == pytest.approx(row.usd_per_hour / 3600 / row.reached_per_s)
    none = row_of_clients("d", INSTANCE, LOAD, Limits(tpot_s=1e-4), clients=100, weight_bytes=1, usd_per_hour=2.0)
    assert none.replicas == 0
    assert "tpot of one request alone" in none.reason


def test_a_plan_for_users():
    result = serve_plan(job(), on="l4,rtx-4090", concurrency=64, slo="tpot=20ms")
    row = result.rows[0]
    assert result.rate_per_s == row.reached_per_s
    assert row.clients * row.replicas >= 64
    assert row.reached_per_s * row.latency["latency_s"].p50.value == pytest.approx(64, rel=0.5)
    assert result.by_rate == ()
    assert result.to_dict()["arrivals"] == {"kind": "closed loop", "clients": 64}
    assert row.energy is not None
    assert "64 users" in str(result)


@pytest.mark.parametrize(
    ("settings", "rate", "flag"),
    [
        ({}, "1/s", "--rate"),
        ({"day": "office"}, None, "--day"),
        ({"spot": True}, None, "--spot"),
    ],
)
def test_users_have_no_rate(settings, rate, flag: str):
    with pytest.raises(InputError, match=f"wait for their answers, and {flag} is") as caught:
        planned_load({"concurrency": 5, **settings}, rate=rate, longest=None)
    assert caught.value.ways_out[0] == f"leave out {flag}"


def test_bad_numbers_of_users():
    for clients in (0, -1, 1_000_000):
        with pytest.raises(InputError, match="users"):
            planned_load({"concurrency": clients}, rate=None, longest=None)


def test_ever_narrower_bounds_of_users_end_at_their_most():
    for limit in (0, 1, 5, 99, 100):
        bounds = list(narrowing(lambda clients, limit=limit: clients <= limit, 100))
        assert bounds[-1] == (limit, limit)
        for (low, high), (lower, higher) in pairwise(bounds):
            assert low <= lower <= limit <= higher <= high


@pytest.mark.parametrize("variation", [0.0, 1.5])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(latency_s=0.6),
        Limits(ttft_s=0.2, tpot_s=0.006),
        Limits(ttft_s=0.05, tpot_s=0.012, share=0.9),
        Limits(ttft_s=2.0, tpot_s=0.008, latency_s=1.0),
    ],
)
def test_no_instance_serves_more_users_than_its_bound(variation: float, limits: Limits):
    """Against the most that is served where any number is tried; the bound is of use, too."""
    load = LoadShape(Lengths(100, 40, input_variation=variation, output_variation=variation, longest=2000))
    drawn = load.at(1.0)
    bound = clients_bound(rate_bound(INSTANCE, LoadMeans.of(drawn), limits), drawn, limits, most=10_000)
    assert most_clients(lambda n: limits.hold(served_steadily(INSTANCE, load, n)[0]), 500) <= bound < 10_000


def test_a_bound_without_limits_is_all_users():
    drawn = LOAD.at(1.0)
    for limits in (Limits(), Limits(tpot_s=0.01), Limits(ttft_s=0.5), Limits(latency_s=1.0, share=0.5)):
        assert clients_bound(30.0, drawn, limits, most=500) == 500
    assert clients_bound(0.0, drawn, Limits(latency_s=1.0), most=500) == 0


TIMELESS = "input_tokens,output_tokens\n" + "".join(f"{10 + 7 * n},{5 + n % 3}\n" for n in range(50))


def test_lengths_of_a_file_without_times(tmp_path: Path):
    path = tmp_path / "lengths.csv"
    path.write_text(TIMELESS)
    planned = planned_load({"concurrency": 20, "trace": str(path)}, rate=None, longest=None)
    load = planned.shape.at(1.0, count=125)
    pairs = list(zip(load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    lines = [tuple(map(int, line.split(","))) for line in TIMELESS.split()[1:]]
    assert sorted(pairs[:50]) == sorted(pairs[50:100]) == sorted(lines)  # each once, before one comes again
    assert pairs[:50] != pairs[50:100]
    assert len(set(pairs[100:])) == 25
    assert planned.lengths["input_tokens"] == pytest.approx(np.mean([read for read, _ in lines]))
    assert planned.clients == 20
    assert planned.arrivals == {"kind": "closed loop", "clients": 20, "file": "lengths.csv", "requests": 50, "failed": 0}
    # Times that are there are not read, so they may be anything.
    path.write_text("timestamp," + TIMELESS.replace("\n", "\nsoon,").removesuffix("soon,"))
    timed = planned_load({"concurrency": 20, "trace": str(path)}, rate=None, longest=None)
    assert np.array_equal(timed.shape.at(1.0).input_tokens, planned.shape.at(1.0).input_tokens)
    with pytest.raises(FileFormatError, match="neither seconds nor a date"):
        planned_load({"trace": str(path)}, rate=None, longest=None)


def test_bad_files_of_lengths(tmp_path: Path):
    path = tmp_path / "lengths.csv"
    for text, words in (
        ("input_tokens\n3\n", "no column is the tokens written"),
        ("input_tokens,output_tokens\n0,0\n", "no request"),
    ):
        path.write_text(text)
        with pytest.raises(FileFormatError, match=words) as caught:
            planned_load({"concurrency": 5, "trace": str(path)}, rate=None, longest=None)
        assert caught.value.ways_out
    path.write_text(TIMELESS)
    with pytest.raises(InputError, match="exceed the model's context"):
        planned_load({"concurrency": 5, "trace": str(path)}, rate=None, longest=100)
    with pytest.raises(InputError, match="--trace brings what --input says"):
        planned_load({"concurrency": 5, "trace": str(path), "input": 3}, rate=None, longest=None)


def test_users_with_the_lengths_of_a_file_are_served_as_by_brute_force(tmp_path: Path):
    """Every request alike, so that the file's lengths are those of the law: 20 users and their time for each."""
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n" + "100,40\n" * 30)
    planned = planned_load({"concurrency": 20, "trace": str(path)}, rate=None, longest=None)
    served, reached = served_steadily(INSTANCE, planned.shape, 20)
    same, also = served_steadily(INSTANCE, LOAD, 20)
    assert reached == pytest.approx(also)
    assert np.array_equal(served.latency_s, same.latency_s)
