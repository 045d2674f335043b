"""The collectives of data-parallel ranks in many steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuwise.plan.compose.exchange import Collectives, RankGroups
from gpuwise.strategy import Strategy
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import group_along, shard_group
from gpuwise.trace.parallel.launches import HostLaunches, PhaseCalls, TrainedUnits, of_replicas, of_shards, of_whole_shards
from gpuwise.trace.parallel.replicate import COPIES
from gpuwise.trace.parallel.shard import REDUCED_BYTES
from gpuwise.trace.parallel.shard_traffic import copied_of_gathers
from gpuwise.trace.parallel.variant import is_sharded

_MANY = 10**9


@dataclass(frozen=True)
class RankBytes:
    """What ranks hold, as recorded. All have the shape of the ranks.

    Attributes:
        parameter_bytes, gradient_bytes: of the rank.
        rest_parameter_bytes: of what is in no block.
        blocks: number of its blocks.
        tensors: number of its gradients.
        buckets: of gradients, of a rank that has the whole model.
        expert_parameter_bytes, expert_gradient_bytes: of the experts that a rank of ep has, a part of the rank's; 0 by default.
    """

    parameter_bytes: np.ndarray
    gradient_bytes: np.ndarray
    rest_parameter_bytes: np.ndarray
    blocks: np.ndarray
    tensors: np.ndarray
    buckets: np.ndarray
    expert_parameter_bytes: np.ndarray = field(default_factory=lambda: np.zeros(1))
    expert_gradient_bytes: np.ndarray = field(default_factory=lambda: np.zeros(1))


@dataclass(frozen=True)
class Sharing:
    """How data-parallel ranks share a model, in one mesh or in many.

    Attributes:
        kind: "replicas" have all of it, "replicated stages" all of a pipeline's rank; "shards" gather and reduce it block by
            block, "stages" of a pipeline once a step.
        replicas: the group that holds the same; its ranks have equal shards.
        shards: the group that splits parameters, gradients or state.
        experts: the part of it that has the same experts.
        freed: whether parameters are freed after a block's forward.
        postponed: whether gradients are reduced in the last micro-batch alone.
        compressed: whether gradients are sent in bf16.
    """

    kind: str
    replicas: RankGroup | RankGroups
    shards: RankGroup | RankGroups
    experts: RankGroup | RankGroups
    freed: np.ndarray | bool
    postponed: np.ndarray | bool
    compressed: bool = False


def sharing_of(strategy: Strategy) -> Sharing:
    """How the ranks of one mesh share a model."""
    mesh, shard = strategy.mesh, strategy.parallelism.shard
    kinds = ("shards", "stages") if is_sharded(strategy) else ("replicas", "replicated stages")
    return Sharing(
        kinds[mesh.pp > 1],
        group_along(mesh, "dp_replicate"),
        shard_group(mesh),
        group_along(mesh, "dp_shard/ep"),
        shard == "parameters",
        shard == "optimizer",
        strategy.parallelism.compress_gradients,
    )


def data_collectives(
    sharing: Sharing, of_ranks: RankBytes, *, gathered_bytes: np.ndarray | int, accumulation: np.ndarray, in_flight: np.ndarray
) -> list[Collectives]:
    """The collectives of gradients and parameters, at any micro-batches.

    As gpuwise.trace.parallel has them of one step: replicate, shard_traffic and shard_stage.

    Arguments:
        gathered_bytes: of a parameter's element, as recorded.
        accumulation: micro-batches of a step.
        in_flight: of each rank of a pipeline.
    """
    if sharing.kind in ("replicas", "replicated stages"):
        return _of_replicas(sharing, of_ranks)
    reduced, reduced_experts = (
        size / gathered_bytes * REDUCED_BYTES for size in (of_ranks.gradient_bytes, of_ranks.expert_gradient_bytes)
    )
    if sharing.kind == "stages":
        return _of_stages(sharing, of_ranks, reduced, accumulation=accumulation, in_flight=in_flight)
    return _of_shards(sharing, of_ranks, reduced, reduced_experts, accumulation=accumulation)


def _of_replicas(sharing: Sharing, of_ranks: RankBytes) -> list[Collectives]:
    size = of_ranks.gradient_bytes
    of_stage = of_ranks.blocks + (of_ranks.rest_parameter_bytes > 0)  # fully_shard reduces block by block
    calls = of_ranks.buckets if sharing.kind == "replicas" else of_stage
    return [Collectives("all_reduce", sharing.replicas, size, calls, "last backward", True, COPIES * size)]


def _of_shards(
    sharing: Sharing,
    of_ranks: RankBytes,
    reduced: np.ndarray,
    reduced_experts: np.ndarray,
    *,
    accumulation: np.ndarray,
) -> list[Collectives]:
    shards, replicas, same = sharing.shards, sharing.replicas, sharing.experts
    passes, gathering = np.where(sharing.freed, 2, 1), np.where(sharing.freed, accumulation, 1)
    reducing = np.where(sharing.postponed, 1, accumulation)
    sent, sent_experts = (size * (0.5 if sharing.compressed else 1.0) for size in (reduced, reduced_experts))
    whole, rest, units = of_ranks.parameter_bytes, of_ranks.rest_parameter_bytes, of_ranks.blocks + 1
    experts = of_ranks.expert_parameter_bytes
    gathered, gathered_experts = (rest + passes * (whole - rest - experts)) * gathering, passes * experts * gathering
    read = np.minimum(1.0, whole / np.maximum(1.0, reduced))
    return [
        Collectives(
            "all_gather",
            shards,
            gathered,
            (passes * of_ranks.blocks + 1) * gathering,
            "step",
            copied_bytes=gathered * _copied_of_gathers(shards.ranks) + gathered_experts * _copied_of_gathers(same.ranks),
        ),
        Collectives(
            "reduce_scatter",
            shards,
            (sent - sent_experts) * reducing,
            units * reducing,
            "step",
            copied_bytes=(1 + read) * sent * reducing,
        ),
        Collectives("all_reduce", replicas, (sent - sent_experts) / shards.ranks + sent_experts / same.ranks, units, "step"),
        Collectives("all_gather", same, gathered_experts, passes * of_ranks.blocks * gathering, "step"),
        Collectives("reduce_scatter", same, sent_experts * reducing, of_ranks.blocks * reducing, "step"),
    ]


def _of_stages(
    sharing: Sharing, of_ranks: RankBytes, reduced: np.ndarray, *, accumulation: np.ndarray, in_flight: np.ndarray
) -> list[Collectives]:
    size, units = of_ranks.parameter_bytes, of_ranks.blocks + 1
    shards, replicas = sharing.shards, sharing.replicas
    gathers = np.where(sharing.freed, accumulation + in_flight, 1)
    sent = reduced * (0.5 if sharing.compressed else 1.0)
    copied = size * gathers * _copied_of_gathers(shards.ranks)
    return [
        Collectives("all_gather", shards, size * gathers, np.floor(units * gathers), "step", copied_bytes=copied),
        Collectives("reduce_scatter", shards, sent, units, "last backward", True, copied_bytes=of_ranks.gradient_bytes + sent),
        Collectives("all_reduce", replicas, sent / shards.ranks, units, "last backward", True),
    ]


def data_launches(sharing: Sharing, of_ranks: RankBytes, *, precision: str, accumulation: np.ndarray) -> HostLaunches:
    """What the host does for these collectives beside calling them, which is not counted of stages.

    Arguments:
        precision: as in Strategy.
        accumulation: micro-batches of a step.
    """
    trained = TrainedUnits(of_ranks.blocks, of_ranks.tensors, precision)
    if sharing.kind in ("stages", "replicated stages"):
        return HostLaunches()
    if sharing.kind == "replicas":
        return of_replicas(trained, accumulation).where(np.asarray(sharing.replicas.ranks) > 1)
    split, freed = np.asarray(sharing.shards.ranks) > 1, np.asarray(sharing.freed)
    reducing, gathering = np.where(sharing.postponed, 1, accumulation), np.where(freed, accumulation, 1)
    shards = of_shards(
        trained,
        gathers=PhaseCalls((trained.blocks + 1) * gathering, trained.blocks * freed * gathering),
        reduces=PhaseCalls(reducing, trained.blocks * reducing),
        micro_batches=accumulation,
        added_by_unit=(np.asarray(sharing.replicas.ranks) > 1) & (reducing == accumulation),
    )
    return shards.where(split) + of_whole_shards(trained, accumulation).where(~split)


def calls_of(collectives: Sequence[Collectives]) -> np.ndarray:
    """Calls of collectives that have anything to exchange."""
    there = ((one.payload_bytes > 0) & (np.asarray(one.group.ranks) > 1) for one in collectives)
    return sum((one.calls * some for one, some in zip(collectives, there, strict=True)), np.zeros(1))


def _copied_of_gathers(ranks: np.ndarray | int) -> np.ndarray:
    """Bytes copied for each byte that is gathered."""
    degrees, rows = np.unique(ranks, return_inverse=True)
    each = np.array([copied_of_gathers(_MANY, degree) / _MANY for degree in degrees.tolist()])
    return each[rows].reshape(np.shape(ranks))
