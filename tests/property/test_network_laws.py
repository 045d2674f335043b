"""What holds for any collective on any link: no faster than the line, one call no slower than two, more bandwidth no slower."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import COLLECTIVES

CATALOG = Catalog()
CHIP = CATALOG.chip("h100-80gb-sxm")
INSIDE = [link for link in CATALOG.links.values() if link.kind != "scale-out" and link.per_direction_bytes_per_s]
BETWEEN = [link for link in CATALOG.links.values() if link.kind == "scale-out"]
# What leaves a rank at least, in payloads; a switch that sums takes and gives each byte once.
LEAST = {"all_reduce": 0.5, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.0, "send": 1.0, "broadcast": 1.0}


@st.composite
def calls(draw):
    """Operation, payload, group and cluster."""
    cluster = Cluster(CHIP, 8, 16, inside=draw(st.sampled_from(INSIDE)), between=draw(st.sampled_from(BETWEEN)))
    stride = draw(st.sampled_from([1, 2, 4, 8]))
    ranks = draw(st.sampled_from([n for n in (2, 4, 8, 16, 32, 64, 128) if n * stride <= cluster.devices]))
    operation = draw(st.sampled_from((*COLLECTIVES, "broadcast")))
    return operation, draw(st.integers(1, 2**36)), RankGroup("x", ranks, stride), cluster


def seconds(operation, payload, group, cluster):
    return collective_time(operation, payload_bytes=payload, group=group, cluster=cluster, parameters=parameters()).seconds


@settings(deadline=None, max_examples=150)
@given(calls())
def test_no_call_is_faster_than_the_line(call):
    operation, payload, group, cluster = call
    link = cluster.inside if group.stride < cluster.devices_per_machine else cluster.between
    rate = link.per_direction_bytes_per_s
    assert seconds(*call) >= LEAST[operation] * payload / max(rate, 1.1 * (link.allreduce_busbw_bytes_per_s or 0.0))


@settings(deadline=None, max_examples=150)
@given(calls(), st.integers(1, 2**36))
def test_one_call_is_no_slower_than_two_and_more_bytes_never_quicker(call, more):
    operation, payload, group, cluster = call
    together = seconds(operation, payload + more, group, cluster)
    apart = seconds(*call), seconds(operation, more, group, cluster)
    assert max(apart) <= together <= sum(apart)


@settings(deadline=None, max_examples=100)
@given(calls(), st.floats(1, 10))
def test_more_bandwidth_is_never_slower(call, factor):
    operation, payload, group, cluster = call

    def faster(link):
        busbw = link.allreduce_busbw_bytes_per_s
        rates = {"per_direction_bytes_per_s": factor * link.per_direction_bytes_per_s}
        return replace(link, **rates, allreduce_busbw_bytes_per_s=None if busbw is None else factor * busbw)

    upgraded = replace(cluster, inside=faster(cluster.inside), between=faster(cluster.between))
    assert seconds(operation, payload, group, upgraded) <= seconds(*call) * (1 + 1e-12)
