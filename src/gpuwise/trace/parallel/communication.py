"""Communication: the collectives of one rank's step, and the groups of ranks that they connect."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuwise.strategy import AXES, Mesh
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.launches import HostLaunches

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
# What a collective runs beside: nothing, so that the step waits for it | forward and backward of the whole step | backward of
# the last micro-batch.
OVERLAPS = ("nothing", "step", "last backward")


@dataclass(frozen=True)
class Collective:
    """Equal collectives of one rank's step.

    Attributes:
        operation: of COLLECTIVES; "send" is from rank to rank, as between pipeline stages or in ring attention.
        group: the ranks that take part.
        payload_bytes: bytes of the full tensors, summed over the calls.
        calls: number of calls.
        overlaps: of OVERLAPS, "nothing" by default.
        in_update: whether it runs once a step, and not in each micro-batch. Default False.
        copied_bytes: bytes that a rank reads and writes to put into a buffer what the calls send, and to take out what they
            bring, where the step has no positions for that; 0 by default.
    """

    operation: str
    group: RankGroup
    payload_bytes: int
    calls: int
    overlaps: str = "nothing"
    in_update: bool = False
    copied_bytes: int = field(default=0, compare=False)

    @property
    def between_stages(self) -> bool:
        """Whether it passes something on from one pipeline stage to the next. Ring attention sends within a stage."""
        return self.operation == "send" and self.group.axis == "pp"


@dataclass(frozen=True)
class Communication:
    """The collectives of one optimizer step; none for one device.

    Attributes:
        collectives: of the step.
        launches: what the host does for them beside calling them, where the step has no positions for that; nothing by default.
    """

    collectives: tuple[Collective, ...] = ()
    launches: HostLaunches = field(default_factory=HostLaunches)

    def bytes_of(self, operation: str) -> int:
        """Payload of the collectives of one operation."""
        return sum(c.payload_bytes for c in self.collectives if c.operation == operation)

    @property
    def calls(self) -> int:
        """Number of calls of all operations."""
        return sum(c.calls for c in self.collectives)

    def and_also(self, *collectives: Collective) -> Communication:
        """With more collectives; those without ranks to talk to, or without payload, are left out."""
        needed = [c for c in collectives if c.group.ranks > 1 and c.payload_bytes]
        return replace(self, collectives=(*self.collectives, *needed))


def group_along(mesh: Mesh, *axes: str) -> RankGroup:
    """The group of a rank along one axis of a mesh, or along several that are neighbours in AXES, outermost first.

    "ep" is the inner part of dp_shard: neighbours there share the experts. "dp_shard/ep" is the outer part, whose ranks hold
    the same experts.
    """
    first = axes[-1]
    inner = {"ep": "dp_shard", "dp_shard/ep": "dp_shard"}.get(first, first)
    stride = 1
    for axis in AXES[AXES.index(inner) + 1 :]:
        stride *= getattr(mesh, axis)
    if first == "dp_shard/ep":
        return RankGroup(first, mesh.dp_shard // mesh.ep, stride * mesh.ep)
    ranks = 1
    for axis in axes:
        ranks *= getattr(mesh, axis)
    return RankGroup("+".join(axes), ranks, stride)


def shard_group(mesh: Mesh) -> RankGroup:
    """The ranks that split parameters: those of dp_shard and of cp."""
    return group_along(mesh, "dp_shard") if mesh.cp == 1 else group_along(mesh, "dp_shard", "cp")
