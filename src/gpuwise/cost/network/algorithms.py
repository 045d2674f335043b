"""How long the algorithms of collectives take on a group's links, each as a line: a latency and seconds a byte of payload.

Counts of steps are those of NCCL's own model (NVIDIA/nccl, src/graph/tuning.cc): a ring over all devices that enters and leaves
each machine once on every rail, a tree of machines, and sums in the switch. The fastest line is what a call takes, which is how
NCCL chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from gpuwise.cost.network.figures import Protocol
from gpuwise.cost.network.topology import GroupPath, PathLink
from gpuwise.hardware.types import Link

# How often a ring moves the share (n - 1)/n of the payload over each rank's link.
_RING_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class Line:
    """Seconds of a call: latency_s + payload × s_per_byte."""

    latency_s: float
    s_per_byte: float


def lines(operation: str, path: GroupPath) -> tuple[Line, ...]:
    """What each algorithm that carries out the operation would take.

    A ring all-reduce moves 2 (n-1)/n of the payload over each rank's link; an all-gather, a reduce-scatter or an all-to-all
    half of that; a send or a broadcast all of it, once.
    """
    protocols = range(len(path.segments[0].figures.protocols))
    if operation in _RING_PASSES:
        possible = [_ring(path, _RING_PASSES[operation], p) for p in protocols]
        if operation == "all_reduce":
            possible += [_tree(path, p) for p in protocols] if path.between is not None else []
            possible += _in_switch(path)
        return tuple(possible)
    if operation == "all_to_all":
        return tuple(_direct(path, p) for p in protocols)
    hops = path.ranks - 1 if operation == "broadcast" else 1
    return tuple(_chain(path, hops, p) for p in protocols)


def measured(operation: str, ranks: int, link: Link) -> Line:
    """What was measured on this machine: a latency, and a bus bandwidth for each operation or that of all-reduces."""
    passes = _RING_PASSES.get(operation, int(operation == "all_to_all")) * (ranks - 1) / ranks or 1.0
    rate = link.collective_busbw_bytes_per_s.get(operation, link.allreduce_busbw_bytes_per_s)
    assert rate
    return Line(link.latency_s or 0.0, passes / rate)


def _ring(path: GroupPath, passes: int, protocol: int) -> Line:
    crossings = 0 if path.between is None else passes * path.between.hops
    hops = 0
    if path.inside is not None:
        hops = passes * (path.inside.hops if path.between is None else path.ranks - path.machines)
    moved, own = passes * (path.ranks - 1) / path.ranks, _own_s_per_byte(path, protocol)
    s_per_byte = moved * _s_per_byte(path.segments[0], path, protocol) + own
    if path.between is not None:
        s_per_byte = max(s_per_byte, moved * _s_per_byte(path.between, path, protocol))
    return Line(_latency(path, hops, crossings, protocol), s_per_byte)


def _tree(path: GroupPath, protocol: int) -> Line:
    """A chain in each machine, a double binary tree of machines: up with the sums, down with the result. Between two machines
    each byte crosses once in each direction, else twice, up and down."""
    hops, crossings = 2 * (0 if path.inside is None else path.inside.hops), 2 * log2(path.machines)
    assert path.between is not None
    crossed = 1 if path.machines == 2 else 2
    s_per_byte = crossed * _s_per_byte(path.between, path, protocol)
    if path.inside is not None:
        s_per_byte = max(s_per_byte, 2 * _s_per_byte(path.inside, path, protocol))
    return Line(_latency(path, hops, crossings, protocol), s_per_byte)


def _in_switch(path: GroupPath) -> list[Line]:
    """Each rank sends its part once and receives the sum once (n + 1 of n parts)."""
    inside = path.inside
    if inside is None or not (inside.link.reduces_in_switch and inside.figures.in_switch_efficiency):
        return []
    ranks = path.ranks_inside
    s_per_byte = (1 + 1 / ranks) / (inside.bandwidth_bytes_per_s * inside.figures.in_switch_efficiency)
    if path.between is None:
        return [Line(inside.figures.in_switch_call_s, s_per_byte)]
    tree = _tree(GroupPath(path.machines, 1, None, path.between), len(path.between.figures.protocols) - 1)
    return [Line(inside.figures.in_switch_call_s + tree.latency_s, max(s_per_byte, tree.s_per_byte))]


def _direct(path: GroupPath, protocol: int) -> Line:
    """Every rank sends to every other at once."""
    ranks, inside, between = path.ranks, path.inside, path.between
    seconds = 0.0
    if inside is not None:
        seconds = (path.ranks_inside - 1) / ranks * _s_per_byte(inside, path, protocol) / inside.figures.direct
    if between is not None:
        leaves = (ranks - path.ranks_inside) / ranks * path.ranks_inside  # of a machine, in payloads of one rank
        seconds = max(seconds, leaves * _s_per_byte(between, path, protocol) / between.figures.direct)
    latency = _latency(path, int(inside is not None), int(between is not None), protocol)
    return Line(latency, seconds + _own_s_per_byte(path, protocol))


def _chain(path: GroupPath, hops: int, protocol: int) -> Line:
    """From rank to rank, in pieces that follow each other."""
    crossings = min(hops, path.machines - 1)
    slowest = max(_s_per_byte(segment, path, protocol) for segment in path.segments)
    return Line(_latency(path, hops - crossings, crossings, protocol), slowest)


def _own_s_per_byte(path: GroupPath, protocol: int) -> float:
    """A rank's own part is copied in its memory."""
    segment = path.segments[0]
    figures = segment.figures
    rate = segment.whole_bytes_per_s * figures.efficiency * figures.protocols[protocol].share
    return figures.own_part / path.ranks / rate


def _s_per_byte(segment: PathLink, path: GroupPath, protocol: int) -> float:
    figures = segment.figures
    crowded = figures.crowded if segment.link.fabric == "bus" and path.ranks_inside > 2 else 1.0
    rate = segment.bandwidth_bytes_per_s * figures.efficiency * crowded
    return 1 / (rate * _protocol(segment, protocol).share)


def _latency(path: GroupPath, hops: float, crossings: float, protocol: int) -> float:
    seconds = max(_protocol(segment, protocol).call_s for segment in path.segments)
    for segment, steps in ((path.inside, hops), (path.between, crossings)):
        if segment is not None:
            seconds += steps * max(_protocol(segment, protocol).hop_s, segment.hop_s)
    return seconds


def _protocol(segment: PathLink, protocol: int) -> Protocol:
    return segment.figures.protocols[protocol]
