"""Exposed communication by axis of the mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.cost.network.collectives import CommunicationTime, communication_time
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import rank_times
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.strategy.parallelism import CONTEXTS
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.parallel.ranks import rank_steps
from gpuwise.trace.presets import load_preset

INSIDE = Link("inside", "a switch", "scale-up", per_direction_bytes_per_s=450e9)
PORT = Link("port", "a port", "scale-out", per_direction_bytes_per_s=50e9)
MACHINES = Cluster(load_catalog().chip("h100-80gb-sxm"), 8, 4, inside=INSIDE, between=PORT)
SHARD, TENSOR, REPLICA = RankGroup("dp_shard", 4, 8), RankGroup("tp", 8, 1), RankGroup("dp_replicate", 4, 8)


def time_of(*collectives: Collective, window_s: float = 0.0) -> CommunicationTime:
    return communication_time(
        Communication(collectives),
        MACHINES,
        backward_s=window_s,
        forward_s=0.0,
        micro_batches=1,
        parameters=parameters(),
    )


def test_each_axis_has_the_seconds_of_its_own_collectives():
    tensor, shard = Collective("all_reduce", TENSOR, 10**9, 4), Collective("all_gather", SHARD, 10**9, 2, "step")
    both = time_of(tensor, shard)
    assert both.by_axis == pytest.approx({"tp": time_of(tensor).exposed_s, "dp_shard": time_of(shard).exposed_s})


def test_axes_sum_to_what_is_exposed_and_share_what_is_hidden():
    gathers, twice = Collective("all_gather", SHARD, 10**9, 1, "step"), Collective("all_gather", REPLICA, 2 * 10**9, 1, "step")
    tensor = Collective("all_reduce", TENSOR, 10**9, 1)
    time = time_of(gathers, twice, tensor, window_s=0.05)
    assert time.exposed_s < time.total_s
    assert sum(time.by_axis.values()) == pytest.approx(time.exposed_s)
    assert time.by_axis["dp_replicate"] / time.by_axis["dp_shard"] == pytest.approx(2, rel=0.01)
    assert time.by_axis["tp"] == pytest.approx(time_of(tensor).exposed_s)


def test_nothing_is_said_of_axes_where_nothing_is_communicated():
    assert time_of().by_axis == {}


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_step_waits_for_what_attention_exchanges(context: str):
    degree = 4  # divides the 12 heads of gpt2
    strategy = Strategy("bf16", mesh=Mesh(cp=degree), parallelism=Parallelism(context=context))
    preset = load_preset("gpt2", precision="bf16")
    assert preset is not None
    (step,) = rank_steps(lambda parts: preset.at(micro_batch=1, seq_len=1024 // parts), strategy)
    one_machine = Cluster(MACHINES.chip, degree, 1, inside=INSIDE)
    (fast,), (slow,) = (
        rank_times([step], cluster, strategy=strategy)
        for cluster in (one_machine, replace(one_machine, inside=replace(INSIDE, per_direction_bytes_per_s=4.5e9)))
    )
    assert fast.send is None  # between stages, of which there are none
    payload_bytes = sum(c.payload_bytes for c in step.communication.collectives if c.group.axis == "cp")
    sent = 1.0 if context == "ring" else (degree - 1) / degree  # of the payload, by each rank
    assert slow.exchange.by_axis["cp"] >= sent * payload_bytes / 4.5e9
    assert 0 < fast.exchange.by_axis["cp"] < slow.exchange.by_axis["cp"]
