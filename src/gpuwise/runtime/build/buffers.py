"""A model's buffers: restored after a skipped step, and checked before a save."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Buffers up to this size are copied before every step that may be skipped. Larger ones (masks, tables of positions) are
# copied when their version changes. batch_norm writes its statistics without an increment of their version.
ALWAYS_COPIED_BYTES = 2**20


@dataclass
class _Copy:
    """A saved buffer.

    Attributes:
        buffer: the tensor itself.
        version: its version at the time of the copy.
        values: a copy of its values.
    """

    buffer: Tensor
    version: int
    values: Tensor


class SavedBuffers:
    """A copy of a model's buffers, on their device, as of the last `save`.

    `restore` restores all of them, including those that forward replaced by another tensor. A buffer registered after
    `save` is left unchanged.
    """

    def __init__(self, model: nn.Module):
        self._modules = list(model.modules())
        self._copies: dict[tuple[nn.Module, str], _Copy] = {}

    @torch.no_grad()
    def save(self) -> None:
        before, self._copies = self._copies, {}
        stale: list[_Copy] = []
        for module in self._modules:
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                copy = before.get((module, name))
                if copy is None or copy.buffer is not buffer or copy.values.shape != buffer.shape:
                    copy = _Copy(buffer, buffer._version, buffer.detach().clone())
                elif buffer.nbytes <= ALWAYS_COPIED_BYTES or buffer._version != copy.version:
                    stale.append(copy)
                self._copies[module, name] = copy
        _copy_all([copy.values for copy in stale], [copy.buffer for copy in stale])
        for copy in stale:
            copy.version = copy.buffer._version

    @torch.no_grad()
    def restore(self) -> None:
        copies = list(self._copies.values())
        _copy_all([copy.buffer for copy in copies], [copy.values for copy in copies])
        for (module, name), copy in self._copies.items():
            module._buffers[name] = copy.buffer
            copy.version = copy.buffer._version

    @torch.no_grad()
    def restore_where(self, wrong: Tensor) -> None:
        """Restores the buffers if `wrong`, a scalar on the device, is true; does not wait for the device."""
        for (module, name), copy in self._copies.items():
            now = module._buffers[name]
            if now is not None and now.shape == copy.values.shape and now.dtype == copy.values.dtype:
                torch.where(wrong, copy.values, now, out=now)


def _copy_all(to: list[Tensor], values: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, values)


@torch.no_grad()
def sound_buffers(model: nn.Module, among: Collection[str] | None = None) -> list[str]:
    """Names of the persistent floating-point buffers without NaN or inf; waits for the device.

    -inf is allowed because masks contain it.

    Arguments:
        among: names of the buffers to check; None for all.
    """
    named = {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
        and name not in module._non_persistent_buffers_set
        and buffer.is_floating_point()
        and buffer.numel()
    }
    if among is not None:
        named = {name: buffer for name, buffer in named.items() if name in among}
    if not named:
        return []
    largest = torch.stack([buffer.amax().float().cpu() for buffer in named.values()])  # NaN is the largest of all
    return [name for name, value in zip(named, largest.tolist(), strict=True) if value < math.inf]
