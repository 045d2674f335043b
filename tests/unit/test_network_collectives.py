"""Collectives: limits that physics sets, what grows with what, and published measurements that no fit has seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.cost.network.collectives import CollectiveTime, collective_time, communication_time
from gpuwise.cost.network.figures import network_figures
from gpuwise.cost.network.topology import group_path
from gpuwise.cost.parameters import parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside, machine_of
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication

CATALOG = load_catalog()
H100 = CATALOG.chip("h100-80gb-sxm")
LINK = CATALOG.link
GIB = 2**30
HGX = Cluster(H100, 8, inside=LINK("nvlink4"))
HGX_NDR = Cluster(H100, 8, 64, inside=LINK("nvlink4"), between=LINK("azure-ndr"))
NVL72 = Cluster(H100, 72, inside=LINK("nvlink5-nvl72"))
P4D = Cluster(H100, 8, 4, inside=LINK("nvlink3"), between=LINK("efa1"))
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


def timed(operation: str, payload: float, ranks: int, cluster: Cluster = HGX, *, stride: int = 1) -> CollectiveTime:
    group = RankGroup("x", ranks, stride)
    return collective_time(operation, payload_bytes=payload, group=group, cluster=cluster, parameters=parameters())


def busbw(operation: str, payload: float, ranks: int, cluster: Cluster = HGX) -> float:
    """GB/s, as nccl-tests counts it."""
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1, "send": 1}.get(operation, (ranks - 1) / ranks)
    return factor * payload / timed(operation, payload, ranks, cluster).seconds / 1e9


# nccl-tests and all_reduce_bench of stas00/ml-engineering (A100, H200, B200), oracle-quickstart/oci-hpc-oke (8 GB200),
# Azure's guide of ND GB200 v6, OCI's GPU quick start (MI355X), Voltage Park's H100 with NDR InfiniBand (AI @ Georgia Tech), p4d
# of 2022 (NVIDIA/nccl issue 527): large messages, GB/s. Tolerances are what the spreads allow.
PUBLISHED = [
    ("8 x A100", Cluster(H100, 8, inside=LINK("nvlink3")), "all_reduce", 16 * GIB, 8, 234.9, 0.05),
    ("8 x H200 in the switch", HGX, "all_reduce", 16 * GIB, 8, 480.0, 0.15),
    ("4 x H200", HGX, "all_reduce", 8 * GIB, 4, 363.3, 0.1),
    ("8 x H200 gather", HGX, "all_gather", 16 * GIB, 8, 361.4, 0.1),
    ("8 x H200 scatter", HGX, "reduce_scatter", 16 * GIB, 8, 362.9, 0.1),
    ("8 x B200 in the switch", Cluster(H100, 8, inside=LINK("nvlink5")), "all_reduce", 8 * GIB, 8, 838.0, 0.1),
    ("4 x B200", Cluster(H100, 8, inside=LINK("nvlink5")), "all_reduce", 8 * GIB, 4, 673.2, 0.1),
    ("8 x GB200 of 72", NVL72, "all_reduce", 16 * GIB, 8, 845.7, 0.05),
    ("4 x GB200 of 72", NVL72, "all_reduce", 8 * GIB, 4, 679.6, 0.05),
    ("8 x MI355X", Cluster(H100, 8, inside=LINK("xgmi-mi355x")), "all_reduce", 8 * GIB, 8, 406.8, 0.1),
    ("8 x MI300X", Cluster(H100, 8, inside=LINK("xgmi-mi300x")), "all_reduce", 4 * GIB, 8, 312.9, 0.05),
    ("2 x MI300X", Cluster(H100, 8, inside=LINK("xgmi-mi300x")), "all_reduce", 4 * GIB, 2, 47.7, 0.1),
    ("16 x A100, EFA", P4D, "all_reduce", GIB, 16, 57.2, 0.35),
    ("24 x A100, EFA", P4D, "all_reduce", GIB, 24, 31.8, 0.35),
    ("32 x H100, NDR", HGX_NDR, "all_reduce", 8 * GIB, 32, 330.9, 0.15),
    ("32 x H100, NDR, gather", HGX_NDR, "all_gather", 8 * GIB, 32, 323.5, 0.15),
]


@pytest.mark.parametrize(("cluster", "operation", "payload", "ranks", "expected", "off"), [p[1:] for p in PUBLISHED])
def test_published_measurements(cluster: Cluster, operation: str, payload: int, ranks: int, expected: float, off: float):
    assert busbw(operation, payload, ranks, cluster) == pytest.approx(expected, rel=off)


def test_a_tree_of_two_machines_crosses_their_network_half_as_often_as_a_ring():
    """57 GB/s on two p4d, 30 on four (NVIDIA/nccl issue 527)."""
    assert busbw("all_reduce", GIB, 16, P4D) / busbw("all_reduce", GIB, 32, P4D) == pytest.approx(57.2 / 29.6, rel=0.1)


@pytest.mark.parametrize("cluster", [HGX, HGX_NDR, Cluster(H100, 64, inside=LINK("pcie4x16"))])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_bytes_and_more_ranks_take_longer(cluster: Cluster, operation: str):
    sizes = [timed(operation, 2**e, 8, cluster).seconds for e in range(10, 36)]
    assert sizes == sorted(sizes)
    small = [timed(operation, 2**12, ranks, cluster).seconds for ranks in (2, 4, 8, 16, 32, 64) if ranks <= cluster.devices]
    assert small == sorted(small)


def test_rings_send_each_byte_twice_once_and_once():
    """2 (n-1)/n, (n-1)/n and (n-1)/n of the payload, on a link without copies or sums in the switch."""
    plain = replace(network_figures()["nvlink"], own_part=0.0, in_switch_efficiency=0.0)
    own = replace(parameters(), network={**network_figures(), "nvlink": plain})

    def seconds(operation: str) -> float:
        group = RankGroup("x", 8, 1)
        return collective_time(operation, payload_bytes=2**40, group=group, cluster=HGX, parameters=own).seconds

    rate = 450e9 * plain.efficiency
    assert seconds("all_reduce") == pytest.approx(2 * 7 / 8 * 2**40 / rate, rel=1e-3)
    assert seconds("all_gather") == seconds("reduce_scatter") == pytest.approx(7 / 8 * 2**40 / rate, rel=1e-3)
    assert [seconds("send"), seconds("broadcast")] == pytest.approx([2**40 / rate] * 2, rel=1e-3)


def test_latency_grows_with_the_groups_ranks_and_not_with_the_cluster():
    large = replace(HGX_NDR, machines=2048)
    for ranks in (8, 16, 64):
        assert timed("all_gather", 1024, ranks, large) == timed("all_gather", 1024, ranks, HGX_NDR)
    assert timed("all_gather", 1024, 64, large).seconds > 2 * timed("all_gather", 1024, 16, large).seconds


def test_small_messages_across_many_machines_take_a_tree():
    """A ring of 512 ranks has 1,022 steps, a tree of 64 machines 12 across them."""
    assert timed("all_reduce", 1024, 512, HGX_NDR).seconds < 0.5 * 2 * timed("all_gather", 1024, 512, HGX_NDR).seconds


def test_small_messages_reach_less_bandwidth():
    curve = [busbw("all_reduce", 2**e, 8) for e in range(12, 34)]
    assert curve == sorted(curve)
    assert curve[0] < 0.01 * curve[-1]


def test_groups_that_cross_at_the_same_time_share_the_network():
    """The all-reduces of eight tensor-parallel ranks cross at once: each has an eighth."""
    one, eight = timed("all_gather", GIB, 4, HGX_NDR, stride=8), timed("all_gather", GIB, 32, HGX_NDR)
    assert one.seconds > 6 * eight.seconds * (3 / 4) / (31 / 32)
    assert one.crosses
    assert eight.crosses


def test_a_mesh_of_links_gives_two_devices_one_of_seven():
    pair = group_path(RankGroup("x", 2, 1), Cluster(H100, 8, inside=LINK("xgmi-mi355x")), network_figures())
    assert pair.segments[0].bandwidth_bytes_per_s == pytest.approx(LINK("xgmi-mi355x").per_link_bytes_per_s)


def test_a_torus_uses_all_its_axes():
    pod = Cluster(CATALOG.chip("tpu-v5e"), 256, inside=LINK("ici-v5e"))
    whole, row = (group_path(RankGroup("x", n, 1), pod, network_figures()).segments[0] for n in (256, 16))
    assert whole.bandwidth_bytes_per_s == pytest.approx(4 * 45e9)
    assert row.bandwidth_bytes_per_s == pytest.approx(2 * 45e9)
    assert (whole.hops, row.hops) == (16, 8)  # half of each axis, both ways around


def test_consumer_cards_exchange_through_the_host():
    geforce, server = CATALOG.chip("rtx-4090"), CATALOG.chip("a10")
    slow, fast = (Cluster(chip, 2, inside=link_inside(chip, 2, catalog=CATALOG)) for chip in (geforce, server))
    assert slow.inside is not None
    assert slow.inside.per_direction_bytes_per_s == LINK("pcie4x16").per_direction_bytes_per_s
    assert timed("all_reduce", GIB, 2, slow).seconds > 1.5 * timed("all_reduce", GIB, 2, fast).seconds


def test_pcie_slots_of_one_host_share_its_bridges():
    bus = Cluster(H100, 8, inside=LINK("pcie4x16"))
    assert busbw("all_reduce", GIB, 4, bus) < 0.75 * busbw("all_reduce", GIB, 2, bus)


def test_a_link_that_nobody_measured_says_so_and_has_a_wider_spread():
    known = timed("all_reduce", GIB, 8)
    assumed = timed("all_reduce", GIB, 8, Cluster(H100, 8, inside=LINK("gaudi3-roce")))
    assert [note.kind for note in known.notes] == ["known-technology"]
    assert [note.kind for note in assumed.notes] == ["assumed-link-efficiency"]
    assert assumed.spread[1] / assumed.spread[0] > known.spread[1] / known.spread[0]


def test_the_spread_of_a_step_is_that_of_its_links_by_their_seconds():
    inside, across = RankGroup("tp", 8, 1), RankGroup("dp_replicate", 64, 8)
    spreads = [timed("all_reduce", GIB, g.ranks, HGX_NDR, stride=g.stride).spread for g in (inside, across)]
    calls = [Collective("all_reduce", inside, GIB, 1), Collective("all_reduce", across, GIB, 1)]
    times = {"backward_s": 0.0, "forward_s": 0.0, "micro_batches": 1, "parameters": parameters()}
    both = communication_time(Communication(tuple(calls)), HGX_NDR, **times).spread
    assert both is not None
    assert min(s[0] for s in spreads) <= both[0] <= max(s[0] for s in spreads)
    assert min(s[1] for s in spreads) < both[1] < max(s[1] for s in spreads)


def test_an_unknown_link_is_refused():
    with pytest.raises(UnsupportedError, match="between machines is unknown"):
        timed("all_reduce", GIB, 16, Cluster(H100, 8, 2, inside=LINK("nvlink4")))


def test_offers_name_the_network_of_a_machine():
    """The link between machines of an offer is a machine's, never a port's."""
    links = {machine_of(o, catalog=CATALOG).link_between for o in CATALOG.offers if o.network_link_id or o.network_bytes_per_s}
    assert {link.serves for link in links if link is not None} == {"machine"}
