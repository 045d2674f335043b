"""Time of communication between ranks, and how much of it the computation does not hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.cost.network.topology import group_link
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note
from gpuwise.notes.parallel import tensor_parallel_across_machines, waits_for_collectives
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import OVERLAPS, Collective, Communication

# How often a ring over n ranks moves the share (n - 1)/n of the payload over each rank's link.
_RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class CommunicationTime:
    """The communication time of one step.

    Attributes:
        total_s: seconds without overlap.
        exposed_s: seconds that communication adds to the step.
        each_micro_batch_s: the part of exposed_s that each micro-batch waits for, summed over them. Zero (default) where none.
        notes: sources of the bandwidths, and assumptions; none (default) without communication.
        unverified: names of the figures that the catalog has no verified source for.
        spread: low and high of real over forecast times, the widest of all links; None (default) where no link has its own.
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
        note: source of the bandwidth.
        unverified: name of the figure if the catalog has no verified source for it; else "".
        crosses: whether the group spans machines.
        spread: low and high of real over forecast times; None where the link has none of its own.
    """

    seconds: float
    latency_s: float
    note: Note
    unverified: str
    crosses: bool
    spread: tuple[float, float] | None


def collective_time(
    operation: str, *, payload_bytes: float, group: RankGroup, cluster: Cluster, parameters: Parameters
) -> CollectiveTime:
    """The time of one call of a collective by a ring, over links as in group_link.

    A ring all-reduce moves 2 (n-1)/n of the payload over each rank's link; an all-gather, a reduce-scatter or an all-to-all
    half of that; a send all of it, once.

    Arguments:
        operation: of COLLECTIVES.
        payload_bytes: bytes of the full tensor of one call.

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    link = group_link(group, cluster, parameters)
    passes = _RING_PASSES.get(operation, 0) * (group.ranks - 1) / group.ranks or 1.0
    seconds = passes * payload_bytes / link.bandwidth_of.get(operation, link.bandwidth_bytes_per_s) + link.latency_s
    return CollectiveTime(seconds, link.latency_s, link.note, link.unverified, link.crosses, link.spread)


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
    spreads = [call.spread for call in times if call.spread is not None]
    widest = (min(low for low, _ in spreads), max(high for _, high in spreads)) if spreads else None
    return CommunicationTime(total, exposed, waited, _notes(collectives, times), unverified, widest, by_axis)


def _calls(collective: Collective) -> int:
    return max(1, collective.calls)


def _call(collective: Collective, cluster: Cluster, parameters: Parameters) -> CollectiveTime:
    """One of the collective's calls, which are priced as equally large."""
    payload = collective.payload_bytes / _calls(collective)
    return collective_time(
        collective.operation, payload_bytes=payload, group=collective.group, cluster=cluster, parameters=parameters
    )


def _notes(collectives: list[Collective], times: list[CollectiveTime]) -> tuple[Note, ...]:
    notes = [call.note for call in times]
    waiting = [c.group.axis for c in collectives if c.overlaps == "nothing"]
    if waiting:
        notes.append(waits_for_collectives(axes=", ".join(dict.fromkeys(waiting))))
    if any(c.group.axis == "tp" and call.crosses for c, call in zip(collectives, times, strict=True)):
        notes.append(tensor_parallel_across_machines())
    return tuple(dict.fromkeys(notes))
