"""The links over which a group of ranks communicates: ranks are numbered through the machines, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
class Segment:
    """One of the links of a group: that inside a machine, or that between machines.

    Attributes:
        link: the link.
        figures: what collectives over it take.
        bandwidth_bytes_per_s: line rate in one direction: inside, of a rank to the others of the group; between, of all ranks of
            the group in one machine.
        whole_bytes_per_s: line rate of a rank to all devices.
        hop_s: seconds that a hop takes beyond those of the figures.
    """

    link: Link
    figures: LinkFigures
    bandwidth_bytes_per_s: float
    whole_bytes_per_s: float
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
    inside: Segment | None
    between: Segment | None

    @property
    def machines(self) -> int:
        """Machines that the group spans."""
        return -(-self.ranks // self.ranks_inside)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The links that a collective of the group uses."""
        return tuple(segment for segment in (self.inside, self.between) if segment is not None)


def ranks_per_machine(group: RankGroup, devices_per_machine: int) -> int:
    """Ranks of the group in one machine."""
    return max(1, min(group.ranks, devices_per_machine // group.stride))


def group_path(group: RankGroup, cluster: Cluster, figures: Mapping[str, LinkFigures]) -> GroupPath:
    """The links of a group.

    A machine's network is shared by all groups with ranks in it, which communicate at the same time: a group of one rank in each
    machine has the share of one device, a group of all devices the whole line rate.

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    ranks_inside = ranks_per_machine(group, cluster.devices_per_machine)
    inside = between = None
    if ranks_inside > 1:
        inside = _segment(cluster.inside, "inside the machine", figures, share=_share(cluster, ranks_inside))
    if ranks_inside < group.ranks:
        share = cluster.lines_per_machine * ranks_inside / cluster.devices_per_machine
        between = _segment(cluster.between, "between machines", figures, share=share)
    return GroupPath(group.ranks, ranks_inside, inside, between)


def _share(cluster: Cluster, ranks: int) -> float:
    """Share of a device's bandwidth that leads to the other ranks of a group inside a machine."""
    link = cluster.inside
    domain = link.domain_devices or cluster.devices_per_machine if link is not None else ranks
    if link is None or ranks >= domain:
        return 1.0
    if link.fabric == "mesh":
        return (ranks - 1) / (domain - 1)
    if link.fabric in _SHARES:
        shares = _SHARES[link.fabric]
        return shares[min(ranks - 2, len(shares) - 1)]
    if link.fabric in _AXES:
        # A slice of a torus has two links along each axis that it extends over.
        axes = _AXES[link.fabric]
        extends_over = min(axes, max(1, round(axes * log(ranks) / log(domain))))
        return min(ranks - 1, 2 * extends_over) / (2 * axes)
    return 1.0


def _segment(link: Link | None, where: str, figures: Mapping[str, LinkFigures], *, share: float) -> Segment:
    """Raises UnsupportedError where the bandwidth is unknown."""
    if link is None or not (link.allreduce_busbw_bytes_per_s or link.per_direction_bytes_per_s):
        raise UnsupportedError(
            f"the bandwidth of the link {where} is unknown: an exchange over it cannot be priced.",
            ["ask for one device", "name a chip whose link the catalog has: `gpuwise chips`"],
        )
    of_link = figures[technology_of(link)]
    line_rate = link.per_direction_bytes_per_s
    if link.allreduce_busbw_bytes_per_s and (of_link.basis != "fitted" or not line_rate):
        line_rate = link.allreduce_busbw_bytes_per_s / of_link.efficiency
    assert line_rate
    return Segment(link, of_link, line_rate * share, line_rate, link.latency_s or 0.0)
