"""The links that communication of a step goes over, each with the figures that price it and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gpuwise.cost.network.figures import LinkFigures
from gpuwise.cost.network.topology import PathLink, by_busbw, group_path
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import MEASURED_HERE
from gpuwise.hardware.types import Link
from gpuwise.trace.parallel.communication import Communication

# Where the figures of a link come from, surest first.
MEASURED, ON_LINK, FITTED, ELSEWHERE, PUBLISHED, ASSUMED = (
    "measured here",
    "measured on this link",
    "fitted on its technology",
    "measured on another machine",
    "published for its technology",
    "assumed",
)
LINK_PROVENANCE = (MEASURED, ON_LINK, FITTED, ELSEWHERE, PUBLISHED, ASSUMED)
_OF_BASIS = {"fitted": FITTED, "published": PUBLISHED, "assumed": ASSUMED}


@dataclass(frozen=True)
class LinkUse:
    """A link that communication of a step goes over.

    Attributes:
        link: its name.
        where: "inside" machines, or "between" them.
        axes: axes of the mesh whose ranks communicate over it.
        bytes_per_s: line rate in one direction; None where only what collectives reach is known.
        bytes_per_s_source: source of the line rate; "" without one.
        serves: whose bandwidth that is: "device" or "machine".
        busbw_bytes_per_s: bus bandwidth that all-reduces reach, where that prices the link; None where `efficiency` does.
        efficiency: share of the line rate that rings reach with large messages; None where `busbw_bytes_per_s` prices it.
        latency_s: of a message, as the catalog has it; None where the figures of the technology alone count.
        technology: whose figures price collectives; "" where the link has figures of its own.
        low, high: real over forecast times, with 90 % between them.
        provenance: of LINK_PROVENANCE.
        source: of the figures of collectives.
    """

    link: str
    where: str
    axes: tuple[str, ...]
    bytes_per_s: float | None
    bytes_per_s_source: str
    serves: str
    busbw_bytes_per_s: float | None
    efficiency: float | None
    latency_s: float | None
    technology: str
    low: float
    high: float
    provenance: str
    source: str

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "axes": list(self.axes)}


def links_used(communication: Communication, cluster: Cluster, figures: Mapping[str, LinkFigures]) -> tuple[LinkUse, ...]:
    """The links of all collectives, those inside machines first; none for one device.

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    if cluster.devices == 1:
        return ()
    groups = dict.fromkeys(c.group for c in communication.collectives if c.payload_bytes and c.group.ranks > 1)
    axes: dict[LinkUse, list[str]] = {}
    for group in groups:
        inside = cluster.inside
        if inside is not None and inside.exchange_spread is not None and group.ranks <= cluster.devices_per_machine:
            uses = [_measured(inside)]  # one figure for any number of ranks
        else:
            path = group_path(group, cluster, figures)
            uses = [_use(segment, "between" if segment is path.between else "inside", cluster) for segment in path.segments]
        for use in uses:
            axes.setdefault(use, []).append(group.axis)
    uses = [LinkUse(**{**asdict(use), "axes": tuple(dict.fromkeys(names))}) for use, names in axes.items()]
    return tuple(sorted(uses, key=lambda use: (use.where == "between", use.link)))


def least_sure(links: Sequence[LinkUse]) -> str:
    """The provenance of the link that is known least; "" without links."""
    return max((use.provenance for use in links), key=LINK_PROVENANCE.index, default="")


def _measured(link: Link) -> LinkUse:
    """A link whose collectives were timed one by one, on this machine or on another."""
    assert link.exchange_spread is not None
    low, high = link.exchange_spread
    source = link.source_of("allreduce_busbw_bytes_per_s")
    return LinkUse(
        link=link.name,
        where="inside",
        axes=(),
        bytes_per_s=link.per_direction_bytes_per_s,
        bytes_per_s_source=link.source_of("per_direction_bytes_per_s").text if link.per_direction_bytes_per_s else "",
        serves="device",
        busbw_bytes_per_s=link.allreduce_busbw_bytes_per_s,
        efficiency=None,
        latency_s=link.latency_s,
        technology="",
        low=low,
        high=high,
        provenance=MEASURED if source == MEASURED_HERE else ELSEWHERE,
        source=source.text,
    )


def _use(segment: PathLink, where: str, cluster: Cluster) -> LinkUse:
    link, figures = segment.link, segment.figures
    own = by_busbw(link, figures)
    low, high = figures.spread
    return LinkUse(
        link=link.name,
        where=where,
        axes=(),
        bytes_per_s=link.per_direction_bytes_per_s,
        bytes_per_s_source=link.source_of("per_direction_bytes_per_s").text if link.per_direction_bytes_per_s else "",
        serves=cluster.between_serves if where == "between" else "device",
        busbw_bytes_per_s=link.allreduce_busbw_bytes_per_s if own else None,
        efficiency=None if own else figures.efficiency,
        latency_s=link.latency_s,
        technology="" if own else figures.technology,
        low=low,
        high=high,
        provenance=ON_LINK if own else _OF_BASIS[figures.basis],
        source=link.source_of("allreduce_busbw_bytes_per_s").text if own else figures.source,
    )
