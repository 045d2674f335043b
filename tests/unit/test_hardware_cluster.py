"""Cluster: counts, memory and links of the devices of a job."""

from __future__ import annotations

import pytest

from gpuwise.cost.network.collectives import communication_time
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError
from gpuwise.hardware import load_catalog, parse_device
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication

CATALOG = load_catalog()
H100 = CATALOG.chip("h100-80gb-sxm")
PORT = Link("port", "a port", "scale-out", per_direction_bytes_per_s=50e9)
INSIDE = Link("inside", "a switch", "scale-up", per_direction_bytes_per_s=450e9)


def reduced(cluster: Cluster) -> Communication:
    return Communication().and_also(Collective("all_reduce", RankGroup("dp_replicate", cluster.devices, 1), 10**10, 1))


def total_s(cluster: Cluster) -> float:
    return communication_time(
        reduced(cluster), cluster, backward_s=0.0, forward_s=0.0, micro_batches=1, parameters=parameters()
    ).total_s


def test_devices_are_those_of_all_machines():
    assert Cluster(H100).devices == 1
    assert Cluster(H100, 8).devices == 8
    assert Cluster(H100, 8, 4).devices == 32


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (-8, 1)])
def test_counts_below_one_are_refused(shape):
    with pytest.raises(InputError, match="must be at least 1"):
        Cluster(H100, *shape)


def test_memory_is_the_chips_own_unless_it_is_given():
    assert Cluster(H100).capacity_bytes == H100.usable_memory_bytes
    assert Cluster(H100, memory_bytes=5).capacity_bytes == 5
    cpu = CATALOG.chip("xeon-8380")
    assert Cluster(cpu).capacity_bytes is None
    assert Cluster(cpu, memory_bytes=2**35).capacity_bytes == 2**35


@pytest.mark.parametrize("text", ["rtx-4090", "h100-80gb-sxm:8", "h100-80gb-sxm:8x4"])
def test_a_name_is_read_back_as_the_same_cluster(text):
    cluster = parse_device(text, catalog=CATALOG).cluster
    assert cluster.name == text
    assert parse_device(cluster.name, catalog=CATALOG).cluster == cluster


def test_a_link_between_machines_serves_a_machine_or_each_of_its_devices():
    shared = Cluster(H100, 8, 4, inside=INSIDE, between=PORT)
    each = Cluster(H100, 8, 4, inside=INSIDE, between=PORT, between_serves="device")
    assert (shared.lines_per_machine, each.lines_per_machine) == (1, 8)
    assert total_s(shared) == pytest.approx(8 * total_s(each), rel=0.02)
    with pytest.raises(InputError, match="a machine or a device"):
        Cluster(H100, 8, 4, between=PORT, between_serves="rack")


def test_the_slower_of_both_links_bounds_what_is_communicated():
    slow_inside = Cluster(H100, 8, 2, inside=Link("slow", "a bus", "host", per_direction_bytes_per_s=1e9), between=PORT)
    assert total_s(slow_inside) > 10 * total_s(Cluster(H100, 8, 2, inside=INSIDE, between=PORT))


def test_equal_clusters_are_one_key():
    assert len({Cluster(H100, 8, inside=INSIDE), Cluster(H100, 8, inside=INSIDE), Cluster(H100, 8)}) == 2
