"""Random numbers of each rank: dropout differs between ranks that compute different numbers."""

from __future__ import annotations

import hashlib

from gpuwise.runtime.parallel.world import World


def rank_seed(seed: int, world: World | None) -> int:
    """The seed of a rank once its model is built; `seed` itself for a single process and for the first rank.

    Ranks differ in their samples (dp_replicate, dp_shard), their part of a sequence (cp) or their layers (pp). Ranks of
    tensor parallelism compute the same outside split regions, so they draw the same.
    """
    if world is None:
        return seed
    position = [world.coordinate(axis) for axis in ("pp", "dp_replicate", "dp_shard", "cp")]
    if not any(position):
        return seed
    digest = hashlib.sha256(repr((seed, *position)).encode()).digest()
    return int.from_bytes(digest[:7], "big")
