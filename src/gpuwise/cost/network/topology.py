"""The links over which a group of ranks communicates: ranks are numbered through the machines, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.notes import Note
from gpuwise.notes.step import assumed_link_efficiency, measured_bus_bandwidth
from gpuwise.trace.header import RankGroup


@dataclass(frozen=True)
class GroupLink:
    """What connects the ranks of a group.

    Attributes:
        bandwidth_bytes_per_s: bus bandwidth of one rank in one direction, the slower of the links inside and between machines.
        bandwidth_of: that of collectives which were measured apart, by name.
        latency_s: seconds a call.
        note: source of the bandwidth.
        unverified: name of the figure if the catalog has no verified source for it; else "".
        crosses: whether the group spans machines.
        spread: low and high of real over forecast times; None where the link has none of its own.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    note: Note
    unverified: str
    crosses: bool
    bandwidth_of: Mapping[str, float] = field(default_factory=dict)
    spread: tuple[float, float] | None = None


def ranks_per_machine(group: RankGroup, devices_per_machine: int) -> int:
    """Ranks of the group in one machine."""
    return max(1, min(group.ranks, devices_per_machine // group.stride))


def group_link(group: RankGroup, cluster: Cluster, parameters: Parameters) -> GroupLink:
    """The slower of the links of a group.

    A machine's network is shared by all groups with ranks in it: a group of one rank in each machine has the share of one
    device, a group of all devices the whole line rate.

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    inside = ranks_per_machine(group, cluster.devices_per_machine)
    rates: list[tuple[float, float, Note, str]] = []
    if inside > 1:
        rates.append(_rate(cluster.inside, "inside the machine", parameters.link_efficiency, parameters.call_latency_s))
    crosses = inside < group.ranks
    if crosses:
        efficiency, latency = parameters.network_efficiency, parameters.network_call_latency_s
        rate, latency, note, unverified = _rate(cluster.between, "between machines", efficiency, latency)
        share = inside / cluster.devices_per_machine
        rates.append((rate * cluster.lines_per_machine * share, latency, note, unverified))
    bandwidth, _, note, unverified = min(rates, key=lambda rate: rate[0])
    latency = max(latency for _, latency, _, _ in rates)
    if crosses or cluster.inside is None:
        return GroupLink(bandwidth, latency, note, unverified, crosses)
    rates_of, spread = cluster.inside.collective_busbw_bytes_per_s, cluster.inside.exchange_spread
    return GroupLink(bandwidth, latency, note, unverified, crosses, rates_of, spread)


def _rate(link: Link | None, where: str, efficiency: float, latency: float) -> tuple[float, float, Note, str]:
    """Bytes a second, seconds a call, the note and the name of an unverified figure."""
    if link is None or not (link.allreduce_busbw_bytes_per_s or link.per_direction_bytes_per_s):
        raise UnsupportedError(
            f"the bandwidth of the link {where} is unknown: an exchange over it cannot be priced.",
            ["ask for one device", "name a chip whose link the catalog has: `gpuwise chips`"],
        )
    latency = max(latency, link.latency_s or 0.0)
    figure = "allreduce_busbw_bytes_per_s" if link.allreduce_busbw_bytes_per_s else "per_direction_bytes_per_s"
    unverified = "" if link.source_of(figure).verified else f"{figure} of {link.name}"
    if link.allreduce_busbw_bytes_per_s:
        note = measured_bus_bandwidth(link=link.name)
        return link.allreduce_busbw_bytes_per_s, latency, note, unverified
    assert link.per_direction_bytes_per_s
    note = assumed_link_efficiency(link=link.name, efficiency=efficiency)
    return link.per_direction_bytes_per_s * efficiency, latency, note, unverified
