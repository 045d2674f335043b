"""Groups and axes that share links, against a simulation of their flows by max-min fair shares.

The simulation knows ports and flows alone: a device sends into its machine through one port, a machine to others through one,
and flows through a port have equal shares of what the others leave. A group has one ring for each of its ranks in a machine,
which leaves the machine at that rank, with as much of the payload.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.network.figures import Protocol, network_figures
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.trace.header import RankGroup

CATALOG = load_catalog()
DEVICES, MACHINES, PAYLOAD = 8, 4, 1e9
INSIDE, BETWEEN = 300e9, 200e9
CLUSTER = Cluster(
    CATALOG.chip("a100-80gb-sxm"), DEVICES, MACHINES, inside=CATALOG.link("nvlink3"), between=CATALOG.link("azure-hdr")
)
_SAME = tuple(Protocol(0.0, 0.0, 1.0) for _ in range(3))
IDEAL = replace(
    parameters(),
    network={
        name: replace(figures, protocols=_SAME, efficiency=1.0, own_part=0.0, in_switch_efficiency=0.0)
        for name, figures in network_figures().items()
    },
)
Flow = tuple[float, tuple[str, ...]]  # bytes, and the ports that they pass


def forecast_s(group: RankGroup, operation: str = "all_gather") -> float:
    return collective_time(operation, payload_bytes=PAYLOAD, group=group, cluster=CLUSTER, parameters=IDEAL).seconds


def flows_of(group: RankGroup) -> list[Flow]:
    """The flows of all groups of an axis: each rank of a ring sends (n - 1)/n of the ring's payload to the next."""
    block = group.ranks * group.stride
    flows: list[Flow] = []
    for first in (start + offset for start in range(0, DEVICES * MACHINES, block) for offset in range(group.stride)):
        ranks = [first + i * group.stride for i in range(group.ranks)]
        by_machine: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            by_machine[rank // DEVICES].append(rank)
        rings = len(next(iter(by_machine.values())))
        for turn in range(rings):  # each ring leaves a machine at another of its ranks
            ring = [rank for inside in by_machine.values() for rank in inside[turn:] + inside[:turn]]
            amount = PAYLOAD / rings * (group.ranks - 1) / group.ranks
            for sender, receiver in zip(ring, ring[1:] + ring[:1], strict=True):
                crosses = sender // DEVICES != receiver // DEVICES
                flows.append((amount, (f"machine {sender // DEVICES}" if crosses else f"device {sender}",)))
    return flows


def simulated_s(flows: list[Flow]) -> float:
    """When the last flow ends: rates are max-min fair, and new whenever a flow ends."""
    left = {index: amount for index, (amount, _) in enumerate(flows)}
    now = 0.0
    while left:
        rates = _fair_rates({index: flows[index][1] for index in left})
        step = min(left[index] / rates[index] for index in left)
        now += step
        left = {index: rest for index in left if (rest := left[index] - rates[index] * step) > 1e-6 * PAYLOAD}
    return now


def _fair_rates(paths: dict[int, tuple[str, ...]]) -> dict[int, float]:
    ports = {port for path in paths.values() for port in path}
    free = {port: BETWEEN if port.startswith("machine") else INSIDE for port in ports}
    rates: dict[int, float] = {}
    while len(rates) < len(paths):
        waiting = {port: [i for i, path in paths.items() if port in path and i not in rates] for port in ports}
        port = min((p for p in ports if waiting[p]), key=lambda p: free[p] / len(waiting[p]))
        share = free[port] / len(waiting[port])
        for index in waiting[port]:
            rates[index] = share
            for passed in paths[index]:
                free[passed] -= share
    return rates


@pytest.mark.parametrize(
    "group",
    [
        RankGroup("tp inside a machine", 8, 1),
        RankGroup("two tp groups a machine", 4, 1),
        RankGroup("every second device", 4, 2),
        RankGroup("one rank a machine, eight groups", 4, 8),
        RankGroup("two machines, one rank each", 2, 8),
        RankGroup("two ranks a machine, four groups", 8, 4),
        RankGroup("four ranks a machine, two groups", 16, 2),
        RankGroup("all devices", 32, 1),
    ],
    ids=lambda group: group.axis,
)
def test_all_groups_of_an_axis_at_once_share_their_links(group: RankGroup):
    assert forecast_s(group) == pytest.approx(simulated_s(flows_of(group)), rel=1e-3)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (RankGroup("tp", 2, 1), RankGroup("dp", 4, 2)),  # both through the ports of the devices
        (RankGroup("dp", 4, 8), RankGroup("pp", 2, 8)),  # both through the network
    ],
    ids=["inside a machine", "across machines"],
)
def test_axes_that_share_a_link_take_as_long_at_once_as_one_after_the_other(first: RankGroup, second: RankGroup):
    at_once = simulated_s([*flows_of(first), *flows_of(second)])
    assert forecast_s(first) + forecast_s(second) == pytest.approx(at_once, rel=1e-3)


def test_axes_on_links_of_their_own_are_not_slower_at_once():
    """Tensor parallelism inside machines, replicas across: the forecast's sum is for a step that waits for each in turn."""
    tp, dp = RankGroup("tp", 8, 1), RankGroup("dp", 4, 8)
    at_once = simulated_s([*flows_of(tp), *flows_of(dp)])
    assert at_once == pytest.approx(max(forecast_s(tp), forecast_s(dp)), rel=1e-3)
    assert at_once < forecast_s(tp) + forecast_s(dp)
