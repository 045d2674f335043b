"""What every strategy of a search keeps, and why nothing on a cluster can keep it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note, rejections
from gpuwise.plan.space import legal
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class Constraints:
    """What every strategy of a search keeps.

    Attributes:
        global_batch: samples of an optimizer step.
        precision, recompute, micro_batch, accumulation: pinned by the user; None (default) is searched.
        techniques: the fields that are not searched.
        exact: True (default): the batch is the user's own. False: a job whose step takes one micro-batch may take less.
    """

    global_batch: int
    precision: str | None = None
    recompute: str | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    techniques: Strategy = field(default_factory=Strategy)
    exact: bool = True

    def micro_batches(self, cluster: Cluster) -> list[int]:
        """Micro-batches that make the batch of a device, ascending."""
        # An optimizer in backward leaves nothing to accumulate.
        accumulation = 1 if self.techniques.optimizer_in_backward else self.accumulation
        return legal.micro_batches(self.global_batch // cluster.devices, self.micro_batch, accumulation)


@dataclass(frozen=True)
class NoStrategy:
    """Why no strategy runs on a cluster.

    Attributes:
        reason: one text for many clusters.
        detail: of this one.
        shortfall_bytes: memory missing on each device, to name the nearest.
    """

    reason: Note
    detail: str = ""
    shortfall_bytes: float = 0.0


def why_not(cluster: Cluster, constraints: Constraints) -> NoStrategy | None:
    """Why no strategy is legal on a cluster, whatever its memory; None where some are."""
    if constraints.global_batch % cluster.devices:
        return NoStrategy(rejections.batch_does_not_divide(), f"{constraints.global_batch} over {cluster.devices}")
    if not constraints.micro_batches(cluster):
        return NoStrategy(rejections.micro_batch_does_not_divide())
    if not legal.precisions_for(cluster.chip, constraints.precision):
        return NoStrategy(rejections.precision_unsupported(), constraints.precision or "")
    return None


def no_batch(cluster: Cluster, global_batch: int, *, micro_batch: int | None, accumulation: int | None) -> NoStrategy:
    """Why `legal.batch_for` has no batch for a cluster."""
    what = f"{cluster.devices} devices" + (f" × micro-batch {micro_batch}" if micro_batch else "")
    what += f" × {accumulation} accumulated" if accumulation else ""
    return NoStrategy(rejections.batch_does_not_divide(), f"{global_batch:,} over {what}")
