"""The constraints of a search, and why no strategy on a cluster satisfies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note, rejections
from gpuwise.plan.space import legal
from gpuwise.strategy import Mesh, Strategy


@dataclass(frozen=True)
class Constraints:
    """The constraints that every strategy of a search satisfies.

    Attributes:
        global_batch: samples of one optimizer step.
        precision, recompute, micro_batch, accumulation: values pinned by the user; None (default) is searched.
        techniques: the Strategy fields that are not searched.
        exact: True (default): the batch is the user's own. False: a job whose step takes one micro-batch may take less.
        allow: techniques that change what is trained and may be tried, see gpuwise.plan.space.permission. None by default.
        shards: True (default): parameters may be sharded over devices. False: each device holds a copy of all of them.
    """

    global_batch: int
    precision: str | None = None
    recompute: str | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    techniques: Strategy = field(default_factory=Strategy)
    exact: bool = True
    allow: frozenset[str] = frozenset()
    shards: bool = True

    def meshes(self, cluster: Cluster) -> Sequence[Mesh]:
        """Meshes to try, the fastest first."""
        every = legal.meshes(cluster.devices)
        return every if self.shards else every[:1]

    def micro_batches(self, cluster: Cluster) -> list[int]:
        """Micro-batch sizes that divide a device's batch, ascending."""
        # An optimizer that runs in backward frees the gradients, so nothing can accumulate.
        accumulation = 1 if self.techniques.optimizer_in_backward else self.accumulation
        return legal.micro_batches(self.global_batch // cluster.devices, self.micro_batch, accumulation)


@dataclass(frozen=True)
class NoStrategy:
    """Why no strategy runs on a cluster.

    Attributes:
        reason: one text for many clusters.
        detail: text for this cluster.
        shortfall_bytes: memory missing on each device; the smallest shortfall is named as the nearest.
    """

    reason: Note
    detail: str = ""
    shortfall_bytes: float = 0.0


def why_not(cluster: Cluster, constraints: Constraints) -> NoStrategy | None:
    """Why no strategy is legal on a cluster, whatever its memory; None if some strategy is."""
    if constraints.global_batch % cluster.devices:
        return NoStrategy(rejections.batch_does_not_divide(), f"{constraints.global_batch} over {cluster.devices}")
    if not constraints.micro_batches(cluster):
        if constraints.accumulation is None:
            return no_batch(cluster, constraints.global_batch, micro_batch=constraints.micro_batch, accumulation=None)
        return NoStrategy(rejections.micro_batch_does_not_divide())
    if not legal.precisions_for(cluster.chip, constraints.precision):
        return NoStrategy(rejections.precision_unsupported(), constraints.precision or "")
    return None


def no_batch(cluster: Cluster, global_batch: int, *, micro_batch: int | None, accumulation: int | None) -> NoStrategy:
    """Why `legal.batch_for` has no batch for a cluster."""
    what = f"{cluster.devices} devices" + (f" × micro-batch {micro_batch}" if micro_batch else "")
    what += f" × {accumulation} accumulated" if accumulation else ""
    return NoStrategy(rejections.batch_does_not_divide(), f"{global_batch:,} over {what}")
