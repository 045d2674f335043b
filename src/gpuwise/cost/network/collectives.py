"""Time of communication between ranks, and how much of it the computation does not hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from gpuwise.cost.network.algorithms import Line, lines, measured
from gpuwise.cost.network.figures import LinkFigures
from gpuwise.cost.network.topology import PathLink, by_busbw, group_path
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.notes import Note
from gpuwise.notes.parallel import waits_for_collectives
from gpuwise.notes.step import assumed_link_efficiency, known_technology, measured_bus_bandwidth
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import OVERLAPS, Collective, Communication


@dataclass(frozen=True)
class CommunicationTime:
    """The communication time of one step.

    Attributes:
        total_s: seconds without overlap.
        exposed_s: seconds that communication adds to the step.
        each_micro_batch_s: the part of exposed_s that each micro-batch waits for, summed over them. Zero (default) where none.
        notes: sources of the bandwidths, and assumptions; none (default) without communication.
        unverified: names of the figures that the catalog has no verified source for.
        spread: low and high of real over forecast times, the mean of all calls by their seconds; None (default) without calls.
        by_axis: exposed_s by the axis of the mesh, as its groups are named ("tp", "dp_shard"). Collectives that run beside the
            same computation share what is hidden by their seconds.
    """

    total_s: float
    exposed_s: float
    each_micro_batch_s: float = 0.0
    notes: tuple[Note, ...] = ()
    unverified: tuple[str, ...] = ()
    spread: tuple[float, float] | None = None
    by_axis: Mapping[str, float] = field(default_factory=dict)


NOTHING = CommunicationTime(0.0, 0.0)


@dataclass(frozen=True)
class CollectiveTime:
    """The time of one call of a collective.

    Attributes:
        seconds: of the call, with its latency.
        latency_s: the part of `seconds` that does not depend on the payload.
        notes: whose figures these are.
        unverified: name of the figure if the catalog has no verified source for it; else "".
        crosses: whether the group spans machines.
        spread: low and high of real over forecast times, with 90 % between them.
    """

    seconds: float
    latency_s: float
    notes: tuple[Note, ...]
    unverified: str
    crosses: bool
    spread: tuple[float, float]


@dataclass(frozen=True)
class GroupCalls:
    """What all calls of one operation in one group have in common.

    Attributes:
        lines: the algorithms that carry it out.
        notes, unverified, crosses, spread: as in CollectiveTime.
    """

    lines: tuple[Line, ...]
    notes: tuple[Note, ...]
    unverified: str
    crosses: bool
    spread: tuple[float, float]


def collective_time(
    operation: str, *, payload_bytes: float, group: RankGroup, cluster: Cluster, parameters: Parameters
) -> CollectiveTime:
    """The time of one call of a collective by the fastest algorithm, see cost.network.algorithms.

    Arguments:
        operation: of COLLECTIVES, or "broadcast".
        payload_bytes: bytes of the full tensor of one call.

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    of_group = group_calls(operation, group, cluster, parameters)
    seconds, latency_s = min((line.latency_s + line.s_per_byte * payload_bytes, line.latency_s) for line in of_group.lines)
    return CollectiveTime(seconds, latency_s, of_group.notes, of_group.unverified, of_group.crosses, of_group.spread)


@lru_cache(maxsize=4096)
def group_calls(operation: str, group: RankGroup, cluster: Cluster, parameters: Parameters) -> GroupCalls:
    """Raises UnsupportedError where the bandwidth of a needed link is unknown."""
    link, possible = cluster.inside, group_lines(operation, group, cluster, parameters)
    if link is not None and link.exchange_spread is not None and group.ranks <= cluster.devices_per_machine:
        return GroupCalls(possible, (measured_bus_bandwidth(link=link.name),), _unverified(link), False, link.exchange_spread)
    path = group_path(group, cluster, parameters.network)
    notes = tuple(_note(segment) for segment in path.segments)
    unverified = ", ".join(name for name in (_unverified(segment.link, segment.figures) for segment in path.segments) if name)
    spread = path.segments[-1].figures.spread  # of the network, where the group crosses it
    return GroupCalls(possible, notes, unverified, path.between is not None, spread)


def group_lines(operation: str, group: RankGroup, cluster: Cluster, parameters: Parameters) -> tuple[Line, ...]:
    """The algorithms of group_calls alone, which searches ask for thousands of groups. Errors as there."""
    link = cluster.inside
    if link is not None and link.exchange_spread is not None and group.ranks <= cluster.devices_per_machine:
        return (measured(operation, group.ranks, link),)
    return lines(operation, group_path(group, cluster, parameters.network))


def _note(segment: PathLink) -> Note:
    link, figures = segment.link, segment.figures
    if by_busbw(link, figures):
        return measured_bus_bandwidth(link=link.name)
    low, high = figures.spread
    if figures.basis == "assumed":
        return assumed_link_efficiency(link=link.name, efficiency=figures.efficiency, source=figures.source, low=low, high=high)
    return known_technology(link=link.name, technology=figures.technology, source=figures.source, low=low, high=high)


def _unverified(link: Link, figures: LinkFigures | None = None) -> str:
    """Name of the figure that a link is priced by, if the catalog has no verified source for it."""
    by_own = figures is None or by_busbw(link, figures)
    figure = "allreduce_busbw_bytes_per_s" if by_own else "per_direction_bytes_per_s"
    return "" if link.source_of(figure).verified else f"{figure} of {link.name}"


def communication_time(
    communication: Communication,
    cluster: Cluster,
    *,
    backward_s: float,
    forward_s: float,
    micro_batches: int,
    parameters: Parameters,
) -> CommunicationTime:
    """Collectives along the axes of a mesh that is laid over a cluster, innermost axis first; each call as in collective_time.

    Arguments:
        backward_s, forward_s: of the whole step. The gradients' all-reduce runs beside the backward pass of the last of
            the micro_batches; gathers and scatters of shards run beside every forward and backward pass.
    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    collectives = [c for c in communication.collectives if c.payload_bytes]
    if cluster.devices == 1 or not collectives:
        return NOTHING
    windows = {"nothing": 0.0, "step": backward_s + forward_s, "last backward": backward_s / micro_batches}
    times = [_call(c, cluster, parameters) for c in collectives]
    overlap_share = 0.0 if cluster.chip.kind == "cpu" else parameters.overlap_share  # its cores move the bytes themselves
    total = exposed = 0.0
    by_axis: dict[str, float] = {}
    for overlaps in OVERLAPS:
        seconds, last_call_s = 0.0, 0.0
        of_axis: dict[str, float] = {}
        for collective, call in zip(collectives, times, strict=True):
            if collective.overlaps == overlaps:
                axis, calls_s = collective.group.axis, _calls(collective) * call.seconds
                of_axis[axis] = of_axis.get(axis, 0.0) + calls_s
                seconds += calls_s
                last_call_s = max(last_call_s, call.latency_s)
        hidden = min(max(0.0, seconds - last_call_s), overlap_share * windows[overlaps])  # the last has no cover
        adds = seconds - hidden * (1 - parameters.overlap_slowdown)
        total += seconds
        exposed += adds
        for axis, axis_s in of_axis.items():
            by_axis[axis] = by_axis.get(axis, 0.0) + adds * axis_s / seconds
    waited = sum(
        _calls(c) * call.seconds
        for c, call in zip(collectives, times, strict=True)
        if c.overlaps == "nothing" and not c.in_update
    )
    unverified = tuple(dict.fromkeys(call.unverified for call in times if call.unverified))
    low, high = (
        sum(call.spread[end] * _calls(c) * call.seconds for c, call in zip(collectives, times, strict=True)) / total
        for end in (0, 1)
    )
    return CommunicationTime(total, exposed, waited, _notes(collectives, times), unverified, (low, high), by_axis)


def _calls(collective: Collective) -> int:
    return max(1, collective.calls)


def _call(collective: Collective, cluster: Cluster, parameters: Parameters) -> CollectiveTime:
    """One of the collective's calls, which are priced as equally large."""
    payload = collective.payload_bytes / _calls(collective)
    return collective_time(
        collective.operation, payload_bytes=payload, group=collective.group, cluster=cluster, parameters=parameters
    )


def _notes(collectives: list[Collective], times: list[CollectiveTime]) -> tuple[Note, ...]:
    notes = [note for call in times for note in call.notes]
    waiting = [c.group.axis for c in collectives if c.overlaps == "nothing"]
    if waiting:
        notes.append(waits_for_collectives(axes=", ".join(dict.fromkeys(waiting))))
    return tuple(dict.fromkeys(notes))
