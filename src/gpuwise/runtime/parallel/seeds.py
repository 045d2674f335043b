"""Random numbers of each rank: dropout differs between ranks that compute different numbers."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from gpuwise.runtime.devices import backend_of
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


def share_torch_state(device: torch.device) -> None:
    """Gives PyTorch's generators of host and device, on all ranks, the state that they have on rank 0."""
    backend = backend_of(device)
    on_device = backend.random_state()
    for state, restore in ((torch.get_rng_state(), torch.set_rng_state), (on_device, backend.set_random_state)):
        if state is not None:
            shared = state.to(device)
            dist.broadcast(shared, 0)
            restore(shared.cpu())
