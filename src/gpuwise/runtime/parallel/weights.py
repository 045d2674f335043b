"""All ranks begin with the same weights."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch._guards import active_fake_mode

from gpuwise.runtime.parallel.world import World


@torch.no_grad()
def same_weights(model: nn.Module, world: World) -> None:
    """Copies rank 0's parameters and buffers to ranks whose own differ.

    Ranks that build the whole model do so from the same seed, so they rarely do: in a model that draws from a clock, say, or
    from a device's own random numbers. Norms tell, and nothing is sent where they are equal.
    """
    if active_fake_mode() is not None or dist.get_backend() == "fake":
        return
    tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()] if tensor.numel()]
    if not tensors:
        return
    norms = torch.stack([torch.linalg.vector_norm(tensor.float()) for tensor in tensors])
    norms = norms.nan_to_num(nan=-1.0, posinf=-2.0)
    largest = torch.cat([norms, -norms])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    if bool((largest[: len(norms)] != -largest[len(norms) :]).any()):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
