"""Buffers that training changes, such as batch norm's statistics: those of the first data-parallel rank are the run's."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET_BYTES = 25 * 2**20


class SharedBuffers:
    """The persistent buffers of a model, as data-parallel ranks share them.

    Each rank's forward passes change its own buffers. DistributedDataParallel copies those of its first rank to the others
    before the first forward pass of a step (broadcast_buffers), and before an evaluation's. So it is here, for shards and
    stages, too; checkpoints have the first rank's. A buffer that is not saved with the model (a mask, a table of positions)
    is computed alike by all ranks and stays as it is.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup):
        self._group, self._model = group, model
        self._any = bool(self._tensors())

    @torch.no_grad()
    def share(self) -> None:
        """Copies the buffers of the first rank to the others."""
        if self._any:
            dist._broadcast_coalesced(self._group, self._tensors(), _BUCKET_BYTES, 0)

    def _tensors(self) -> list[Tensor]:
        tensors = {
            id(buffer): buffer
            for module in self._model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set
        }
        return list(tensors.values())
