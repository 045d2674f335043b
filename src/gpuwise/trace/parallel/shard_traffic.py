"""The collectives of one of several shards in one step, as fully_shard (FSDP2) makes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective, Communication, group_along, shard_group
from gpuwise.trace.parallel.launches import PhaseCalls, TrainedUnits, of_shards, of_whole_shards
from gpuwise.trace.parallel.variant import shard_ranks


class RankExperts(NamedTuple):
    """Bytes of the experts that a rank of ep has: as gathered, and of their gradients as reduced; 0 by default."""

    gathered: float = 0.0
    reduced: float = 0.0


def traffic(
    strategy: Strategy,
    *,
    gathered_bytes: np.ndarray,
    reduced_bytes: np.ndarray,
    tensors: int,
    experts: RankExperts,
) -> Communication:
    """The collectives of a step.

    Parameters that are not freed are gathered once a step. Gradients are reduced in each micro-batch, or once if only
    optimizer state is sharded; their shards once between the replicas of hybrid sharding. Of experts that ranks of ep divide,
    those ranks alone have the same ones which are equal in ep: they gather and reduce them, block by block.

    Arguments:
        gathered_bytes: of the parameters of each unit: of what is in no block, and of each block. Shape (units,).
        reduced_bytes: of their gradients. Shape (units,).
        tensors: number of parameters.
        experts: a part of both, in blocks; nothing where the ranks have the same experts.
    """
    parallelism, mesh, accumulation = strategy.parallelism, strategy.mesh, strategy.accumulation
    rest_bytes, blocks_bytes, blocks = gathered_bytes[0], gathered_bytes[1:].sum(), len(gathered_bytes) - 1
    freed = parallelism.shard == "parameters"
    passes = 2 if freed else 1
    gathering = accumulation if freed else 1
    reducing = 1 if parallelism.shard == "optimizer" else accumulation
    units = int(np.count_nonzero(reduced_bytes))
    sent_bytes = reduced_bytes.sum() * (0.5 if parallelism.compress_gradients else 1.0)
    shards, replicas = shard_group(mesh), group_along(mesh, "dp_replicate")
    sharing = group_along(mesh, "dp_shard/ep")  # the same experts
    gathers = (passes * blocks + 1) * gathering
    whole_bytes = int((rest_bytes + passes * (blocks_bytes - experts.gathered)) * gathering)
    whole_experts_bytes = int(passes * experts.gathered * gathering)
    read = min(1.0, gathered_bytes.sum() / max(1.0, reduced_bytes.sum()))  # of what is reduced: gradients before their cast
    sent_experts_bytes = sent_bytes * experts.reduced / max(1.0, reduced_bytes.sum())
    scattered_bytes = int(sent_bytes * reducing)
    scattered_experts_bytes = int(sent_experts_bytes * reducing)
    sent_shard_bytes = (sent_bytes - sent_experts_bytes) / shard_ranks(strategy) + sent_experts_bytes / sharing.ranks
    copied_bytes = copied_of_gathers(whole_bytes, shards.ranks) + copied_of_gathers(whole_experts_bytes, sharing.ranks)
    trained = TrainedUnits(blocks, tensors, strategy.precision)
    launches = of_whole_shards(trained, accumulation)
    if shards.ranks > 1:
        launches = of_shards(
            trained,
            gathers=PhaseCalls((blocks + 1) * gathering, (passes - 1) * blocks * gathering),
            reduces=PhaseCalls(reducing, blocks * reducing),
            micro_batches=accumulation,
            added_by_unit=replicas.ranks > 1 and reducing == accumulation,
        )
    return Communication(launches=launches).and_also(
        Collective(
            "all_gather",
            shards,
            whole_bytes,
            gathers,
            overlaps="step",
            copied_bytes=copied_bytes,
        ),
        Collective(
            "reduce_scatter",
            shards,
            scattered_bytes - scattered_experts_bytes,
            units * reducing,
            overlaps="step",
            copied_bytes=int((1 + read) * scattered_bytes),
        ),
        Collective("all_reduce", replicas, int(sent_shard_bytes), units, overlaps="step"),
        Collective("all_gather", sharing, whole_experts_bytes, passes * blocks * gathering, overlaps="step"),
        Collective("reduce_scatter", sharing, scattered_experts_bytes, blocks * reducing, overlaps="step"),
    )


def copied_of_gathers(payload_bytes: float, ranks: int) -> int:
    """Bytes read and written for gathers of so many bytes: a rank's part is cast into a buffer, and the whole is split from
    another one into parameters; what a rank has alone is only cast (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    PyTorch 2.13)."""
    return int((2 * payload_bytes if ranks > 1 else 0) + 3 * payload_bytes / ranks)
