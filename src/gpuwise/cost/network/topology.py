"""The links over which a group of ranks communicates: ranks are numbered through the machines, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log

from gpuwise.cost.network.figures import LinkFigures, technology_of
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.trace.header import RankGroup

# Shares of a device's bandwidth that rings through 2, 3, ... devices use. DGX-1: 1, 2, 4 and 6 links of six between 2, 3, 4 and
# 8 devices, as nccl-tests on eight V100 show (VIA-Research/vTrain). MI250X: 200 GB/s between the two of a module, 100 beyond
# (docs.lumi-supercomputer.eu/hardware/lumig).
_SHARES = {
    "cube-mesh": (1 / 6, 1 / 3, 2 / 3, 1 / 4, 1 / 3, 2 / 3, 1.0),
    "paired-modules": (200 / 350, 100 / 350),
}
_AXES = {"torus-2d": 2, "torus-3d": 3}


@dataclass(frozen=True)
class PathLink:
    """One of the links of a group: that inside a machine, or that between machines.

    Attributes:
        link: the link.
        figures: what collectives over it take.
        bandwidth_bytes_per_s: line rate in one direction: inside, of a rank to the others of the group; between, of all ranks
            of the group in one machine.
        whole_bytes_per_s: line rate of a rank to all devices.
        hops: from rank to rank, until each has heard of all others.
        hop_s: seconds of a hop, where the catalog knows more than the figures.
    """

    link: Link
    figures: LinkFigures
    bandwidth_bytes_per_s: float
    whole_bytes_per_s: float
    hops: int
    hop_s: float


@dataclass(frozen=True)
class GroupPath:
    """What connects the ranks of a group.

    Attributes:
        ranks: number of ranks.
        ranks_inside: those in one machine.
        inside: the link among them; None where each machine has one rank.
        between: the link between machines; None where one machine has all ranks.
    """

    ranks: int
    ranks_inside: int
    inside: PathLink | None
    between: PathLink | None

    @property
    def machines(self) -> int:
        """Machines that the group spans."""
        return -(-self.ranks // self.ranks_inside)

    @cached_property
    def segments(self) -> tuple[PathLink, ...]:
        """The links that a collective of the group uses."""
        return tuple(segment for segment in (self.inside, self.between) if segment is not None)


def ranks_per_machine(group: RankGroup, devices_per_machine: int) -> int:
    """Ranks of the group in one machine."""
    return max(1, min(group.ranks, devices_per_machine // group.stride))


def group_path(group: RankGroup, cluster: Cluster, figures: Mapping[str, LinkFigures]) -> GroupPath:
    """The links of a group.

    A machine's network is shared by all groups with ranks in it, which communicate at the same time: a group of one rank in
    each machine has the share of one device, a group of all devices the whole line rate.

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    ranks_inside = ranks_per_machine(group, cluster.devices_per_machine)
    if ranks_inside > 1 and cluster.chip.kind == "cpu" and cluster.inside is None:
        raise UnsupportedError(
            f"how ranks share a {cluster.chip.id} is known of the CPU of this machine alone.",
            [f"--on here:{cluster.devices}", f'--on {cluster.chip.id}:1x{cluster.devices} --network "10 Gbit Ethernet"'],
        )
    inside = between = None
    if ranks_inside > 1:
        rate, of_link = _line_rate(cluster.inside, "inside the machine", cluster.devices_per_machine, figures)
        assert cluster.inside is not None
        share, hops = _of_fabric(cluster.inside, ranks_inside, cluster.devices_per_machine)
        inside = PathLink(cluster.inside, of_link, rate * share, rate, hops, cluster.inside.latency_s or 0.0)
    if ranks_inside < group.ranks:
        rate, of_link = _line_rate(cluster.between, "between machines", cluster.devices, figures)
        assert cluster.between is not None
        rate *= cluster.lines_per_machine * ranks_inside / cluster.devices_per_machine
        hops = -(-group.ranks // ranks_inside) - 1
        between = PathLink(cluster.between, of_link, rate, rate, hops, cluster.between.latency_s or 0.0)
    return GroupPath(group.ranks, ranks_inside, inside, between)


def _of_fabric(link: Link, ranks: int, devices: int) -> tuple[float, int]:
    """Share of a device's bandwidth that leads to the other ranks of a group inside a machine, and the hops around a ring."""
    domain = link.domain_devices or devices
    if link.fabric in _AXES:
        # A slice of a torus has two links along each axis that it extends over, and goes around each axis both ways.
        axes = _AXES[link.fabric]
        extends_over = axes if ranks >= domain else min(axes, max(1, round(axes * log(ranks) / log(domain))))
        side = ranks ** (1 / extends_over)
        return min(ranks - 1, 2 * extends_over) / (2 * axes), max(1, round(extends_over * side / 2))
    if link.fabric == "mesh" and ranks < domain:
        return (ranks - 1) / (domain - 1), ranks - 1
    if link.fabric in _SHARES:
        shares = _SHARES[link.fabric]
        return shares[min(ranks - 2, len(shares) - 1)], ranks - 1
    return 1.0, ranks - 1


def _line_rate(link: Link | None, where: str, devices: int, figures: Mapping[str, LinkFigures]) -> tuple[float, LinkFigures]:
    """Line rate in one direction: the catalog's, or what gives the bus bandwidth that was measured among so many devices.

    Raises UnsupportedError where the bandwidth is unknown.
    """
    if link is None or not (link.allreduce_busbw_bytes_per_s or link.per_direction_bytes_per_s):
        raise UnsupportedError(
            f"the bandwidth of the link {where} is unknown: an exchange over it cannot be priced.",
            ["ask for one device", "name a chip whose link the catalog has: `gpuwise chips`"],
        )
    of_link = figures[technology_of(link)]
    if link.allreduce_busbw_bytes_per_s and by_busbw(link, of_link):
        own = of_link.own_part / (2 * max(1, devices - 1))  # which a bus bandwidth counts as sent
        return link.allreduce_busbw_bytes_per_s * (1 + own) / of_link.efficiency, of_link
    assert link.per_direction_bytes_per_s
    return link.per_direction_bytes_per_s, of_link


def by_busbw(link: Link, figures: LinkFigures) -> bool:
    """Whether a link is priced by its own measured bus bandwidth: where it has one, and figures were not fitted on its kind."""
    fitted = figures.basis == "fitted" and bool(link.technology) and bool(link.per_direction_bytes_per_s)
    return bool(link.allreduce_busbw_bytes_per_s) and not fitted
