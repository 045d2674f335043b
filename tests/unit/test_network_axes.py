"""Exposed communication by axis of the mesh."""

from __future__ import annotations

import pytest

from gpuwise.cost.network.collectives import CommunicationTime, communication_time
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication

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
