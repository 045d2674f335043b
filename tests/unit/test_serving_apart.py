"""Prompts read on other instances than answers are written on: against queues in tandem, and brute force over their numbers."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from tests.one_recording import one_recording  # noqa: F401
from tests.unit.test_api_serving import job

from gpuwise.api.devices import cheapest_offer
from gpuwise.api.serving import serve_plan
from gpuwise.errors import InputError, UnknownNameError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.serving.apart import ApartInstances, Transfer, fewest
from gpuwise.serving.arrivals import poisson
from gpuwise.serving.continuous import serve
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.serving.saturation import Limits

NO_TIME = Transfer("a link", 1e18, 0.0, 1)


def policy(sequences: int, *, cache_tokens: int = 1 << 20, brought: bool = False) -> BatchingPolicy:
    return BatchingPolicy(2048, sequences, cache_tokens, brought=brought)


def constant(seconds: float):
    """Every iteration takes as long."""
    return lambda chunks, sequences, past_tokens: seconds


def test_two_queues_in_tandem():
    """Reading is M/D/1, with the mean wait rho D / 2 (1 - rho) (Pollaczek and Khinchine). Its prompts leave at least D apart,
    so writers that are as fast never make them wait."""
    read_s, write_s, count, rho = 0.1, 0.09, 20_000, 0.5
    rng = np.random.default_rng(5)
    load = requests(poisson(rho / read_s, count=count, rng=rng), np.full(count, 2048), np.full(count, 2))
    apart = ApartInstances(
        Instance(constant(read_s), policy(1), (1, 1)),
        Instance(constant(write_s), policy(1, brought=True), (1, 1)),
        NO_TIME,
        1,
        1,
    )
    served = apart.served(load)
    wait_s = rho * read_s / (2 * (1 - rho))
    assert served.ttft_s.mean() == pytest.approx(wait_s + read_s, rel=0.03)
    np.testing.assert_allclose(served.end_s - served.first_token_s, write_s)


def test_prompts_leave_one_after_the_other():
    transfer = Transfer("a link", bytes_per_s=1000.0, latency_s=0.5, token_bytes=10, sequence_bytes=100)
    ready_s, tokens = np.array([0.0, 10.0, 0.1, np.nan, 10.5]), np.array([10, 90, 40, 5, 10])
    # 0.2 s, then 0.5 s; 1 s from 10 s on, then 0.2 s.
    np.testing.assert_allclose(transfer.moved_s(ready_s, tokens), [0.7, 11.5, 1.2, np.nan, 11.7])


def test_what_is_brought_takes_memory():
    """Four requests whose caches fit two at a time run two at a time; prefixes that all share would fit together."""
    load = requests(np.zeros(4), np.full(4, 161), np.full(4, 10))
    load = replace(load, cached_tokens=np.full(4, 160))
    brought = serve(load, constant(1.0), policy(8, cache_tokens=380, brought=True))
    assert sorted(brought.end_s.tolist()) == [10.0, 10.0, 20.0, 20.0]
    assert serve(load, constant(1.0), policy(8, cache_tokens=380)).end_s.tolist() == [10.0] * 4


def test_a_sequence_that_is_preempted_is_read_again():
    load = replace(requests(np.zeros(2), np.full(2, 17), np.full(2, 40)), cached_tokens=np.full(2, 16))
    read = []

    def step(chunks, sequences, past_tokens):
        read.extend(chunks)
        return 1.0

    served = serve(load, step, policy(8, cache_tokens=96, brought=True))
    assert served.preemptions > 0
    assert not np.isnan(served.end_s).any()
    assert max(new for new, _ in read) > 17  # the prompt, and what had been written


LOAD = LoadShape(Lengths(300, 60, input_variation=0.5, output_variation=0.5))


def reading(chunks, sequences, past_tokens):
    return 0.004 + 1e-4 * sum(new for new, _ in chunks)


def writing(chunks, sequences, past_tokens):
    return 0.01 + 1e-3 * (sequences + len(chunks))


@pytest.mark.parametrize("limits", [Limits(ttft_s=0.25, tpot_s=0.025), Limits(ttft_s=0.1), Limits(latency_s=4.0)])
def test_the_fewest_instances_are_those_of_brute_force(limits: Limits):
    rate, usd = 40.0, (2.0, 3.0)
    reads, writes = Instance(reading, policy(64), (1, 1)), Instance(writing, policy(64, brought=True), (1, 1))
    start = ApartInstances(reads, writes, NO_TIME, 1, 1)
    instances, served = fewest(start, limits, lambda count: LOAD.at(rate, count=400), usd=usd)
    assert limits.hold(served)
    cost = usd[0] * instances.readers + usd[1] * instances.writers
    for readers in range(1, instances.readers + 3):
        for writers in range(1, instances.writers + 3):
            if usd[0] * readers + usd[1] * writers < cost:
                other = replace(start, readers=readers, writers=writers)
                load = LOAD.at(rate, count=400)
                assert not limits.hold(other.outcomes(load)[0]), (readers, writers)


def test_limits_that_no_number_holds():
    reads, writes = Instance(reading, policy(64), (1, 1)), Instance(writing, policy(64, brought=True), (1, 1))
    with pytest.raises(UnsupportedError, match="do not hold"):
        fewest(
            ApartInstances(reads, writes, NO_TIME, 1, 1),
            Limits(tpot_s=0.001),
            lambda count: LOAD.at(1.0, count=50),
            usd=(1, 1),
        )


QUESTION = {"rate": "40/s", "input": 400, "output": 100, "slo": "ttft=300ms,tpot=15ms"}


def test_rows_apart_stand_beside_those_together():
    result = serve_plan(job(), on="l4", prefill_on="h100-80gb-sxm", network="100 Gbit Ethernet", **QUESTION)
    assert sorted(row.device for row in result.rows) == ["l4", "l4 after h100-80gb-sxm"]
    assert result.by_rate == ()  # it would leave out the row of two kinds
    row = next(row for row in result.rows if row.mode is not None)
    mode = row.mode
    assert row.share_within >= 0.99
    assert row.usd_per_hour == pytest.approx(
        mode.usd_per_hour
        + row.replicas
        * next(r for r in result.rows if r.device == "l4").usd_per_hour
        / next(r for r in result.rows if r.device == "l4").replicas
    )
    assert row.fleet is None  # more of one kind alone do not serve more
    assert 5e9 < mode.link_bytes_per_s <= 12.5e9
    # Four layers of keys and values of two heads of 64, in 16 bits.
    assert mode.transfer_s == pytest.approx(1e-4 + 400 * 2 * 4 * 2 * 64 * 2 / mode.link_bytes_per_s, rel=0.1)
    for line, role in ((row.launch, "kv_consumer"), (mode.launch, "kv_producer")):
        words = shlex.split(line)
        assert json.loads(words[words.index("--kv-transfer-config") + 1])["kv_role"] == role
    assert any("100GbE" in note for note in result.assumptions)


def test_both_kinds_on_one_machine():
    both = {"on": "h100-80gb-sxm", "prefill_on": "h100-80gb-sxm"}
    outside, inside = (
        next(row for row in serve_plan(job(), network=network, **both, **QUESTION).rows if row.mode)
        for network in ("100 Gbit Ethernet", "inside")
    )
    assert inside.mode.link.startswith("NVLink")
    assert inside.mode.transfer_s < outside.mode.transfer_s
    assert inside.mode.link_bytes_per_s > 10 * outside.mode.link_bytes_per_s
    machine = cheapest_offer(load_catalog(), load_catalog().chip("h100-80gb-sxm"), inside.replicas + inside.mode.readers)
    assert machine is not None
    assert inside.usd_per_hour == machine.usd_per_hour
    result = serve_plan(job(), on="l4", prefill_on="h100-80gb-sxm", network="inside", **QUESTION)
    assert "no machine has both" in next(row.reason for row in result.rows if "after" in row.device)


def test_what_cannot_be_apart():
    with pytest.raises(InputError, match="goes with --prefill-on"):
        serve_plan(job(), on="l4", network="100 Gbit Ethernet", **QUESTION)
    with pytest.raises(UnknownNameError):
        serve_plan(job(), on="l4", prefill_on="no-such-card", **QUESTION)
    result = serve_plan(job(), on="l4", prefill_on="l4", engine="llama.cpp", weights="gguf-q8_0", rate="1/min")
    assert "does not move" in next(row.reason for row in result.rows if "after" in row.device)
