"""The collectives of data-parallel ranks in many steps at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.plan.compose.exchange import Collectives
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import group_along, shard_group
from gpuwise.trace.parallel.replicate import BUCKET_BYTES, COPIES
from gpuwise.trace.parallel.shard import REDUCED_BYTES
from gpuwise.trace.parallel.shard_traffic import copied_of_gathers
from gpuwise.trace.parallel.variant import is_sharded, shard_ranks

_MANY = 10**9


@dataclass(frozen=True)
class RankBytes:
    """What ranks hold, as recorded. All have the shape of the ranks.

    Attributes:
        parameter_bytes, gradient_bytes: of the rank.
        rest_parameter_bytes: of what is in no block.
        blocks: number of its blocks.
    """

    parameter_bytes: np.ndarray
    gradient_bytes: np.ndarray
    rest_parameter_bytes: np.ndarray
    blocks: np.ndarray


def data_collectives(
    strategy: Strategy, of_ranks: RankBytes, *, gathered_bytes: int, accumulation: np.ndarray, in_flight: np.ndarray
) -> list[Collectives]:
    """The collectives of gradients and parameters of a strategy's mesh and shards, at any micro-batches.

    As gpuwise.trace.parallel has them of one step: replicate, shard_traffic and shard_stage.

    Arguments:
        gathered_bytes: of a parameter's element, as recorded.
        accumulation: micro-batches of a step.
        in_flight: of each rank of a pipeline.
    """
    if not is_sharded(strategy):
        return _of_replicas(strategy, of_ranks)
    reduced = of_ranks.gradient_bytes / gathered_bytes * REDUCED_BYTES
    if strategy.mesh.pp > 1:
        return _of_stages(strategy, of_ranks, reduced, accumulation=accumulation, in_flight=in_flight)
    return _of_shards(strategy, of_ranks, reduced, accumulation=accumulation)


def _of_replicas(strategy: Strategy, of_ranks: RankBytes) -> list[Collectives]:
    size, group = of_ranks.gradient_bytes, group_along(strategy.mesh, "dp_replicate")
    calls = np.maximum(1, np.ceil(size / BUCKET_BYTES))
    return [Collectives("all_reduce", group, size, calls, "last backward", True, COPIES * size)]


def _of_shards(strategy: Strategy, of_ranks: RankBytes, reduced: np.ndarray, *, accumulation: np.ndarray) -> list[Collectives]:
    mesh, freed = strategy.mesh, strategy.parallelism.shard == "parameters"
    shards, replicas = shard_group(mesh), group_along(mesh, "dp_replicate")
    passes, gathering = (2, accumulation) if freed else (1, np.ones_like(accumulation))
    reducing = np.ones_like(accumulation) if strategy.parallelism.shard == "optimizer" else accumulation
    sent = reduced * (0.5 if strategy.parallelism.compress_gradients else 1.0)
    whole, rest, units = of_ranks.parameter_bytes, of_ranks.rest_parameter_bytes, of_ranks.blocks + 1
    gathered = (rest + passes * (whole - rest)) * gathering
    read = np.minimum(1.0, whole / np.maximum(1.0, reduced))
    return [
        Collectives(
            "all_gather",
            shards,
            gathered,
            (passes * of_ranks.blocks + 1) * gathering,
            "step",
            copied_bytes=gathered * _copied_of_gathers(shards.ranks),
        ),
        Collectives(
            "reduce_scatter", shards, sent * reducing, units * reducing, "step", copied_bytes=(1 + read) * sent * reducing
        ),
        Collectives("all_reduce", replicas, sent / shard_ranks(strategy), units, "step"),
    ]


def _of_stages(
    strategy: Strategy, of_ranks: RankBytes, reduced: np.ndarray, *, accumulation: np.ndarray, in_flight: np.ndarray
) -> list[Collectives]:
    mesh, size, units = strategy.mesh, of_ranks.parameter_bytes, of_ranks.blocks + 1
    shards, replicas = shard_group(mesh), group_along(mesh, "dp_replicate")
    gathers = accumulation + in_flight if strategy.parallelism.shard == "parameters" else np.ones_like(in_flight)
    sent = reduced * (0.5 if strategy.parallelism.compress_gradients else 1.0)
    copied = size * gathers * _copied_of_gathers(shards.ranks)
    return [
        Collectives("all_gather", shards, size * gathers, np.floor(units * gathers), "step", copied_bytes=copied),
        Collectives("reduce_scatter", shards, sent, units, "last backward", True, copied_bytes=of_ranks.gradient_bytes + sent),
        Collectives("all_reduce", replicas, sent / shard_ranks(strategy), units, "last backward", True),
    ]


def _copied_of_gathers(ranks: int) -> float:
    """Bytes copied for each byte that is gathered."""
    return copied_of_gathers(_MANY, ranks) / _MANY
