"""Packed sequences on fake tensors: their lengths are data, so all are taken to be as long as the longest may be.

What CUDA does with them then (aten/src/ATen/native/PackedSequence.cpp): packing is one copy with time first, and its gradient
zeros and a copy for each time; padding is a buffer of the padding value and a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx

from gpuwise.tracing.patching import patched


@contextmanager
def packing() -> Iterator[None]:
    """Inside, torch.nn.utils.rnn packs and pads fake sequences of the virtual device."""
    with ExitStack() as stack:
        stack.enter_context(patched(torch._VF, "_pack_padded_sequence", _pack))
        stack.enter_context(patched(torch._VF, "_pad_packed_sequence", _pad))
        yield


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """x (time, samples, ...) or (samples, time, ...) -> rows of all times, and how many rows each time has."""
    rows: Tensor = _Packed.apply(x.transpose(0, 1) if batch_first else x)
    times, samples = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    return rows, _constant(samples, times)


def _pad(rows: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, times: int) -> tuple[Tensor, Tensor]:
    """The sequences with padding up to `times`, and their lengths."""
    longest = batch_sizes.shape[0]
    samples = rows.shape[0] // longest
    padded = rows.new_full((times, samples, *rows.shape[1:]), padding_value)
    padded[:longest] = rows.view(longest, samples, *rows.shape[1:])
    return padded.transpose(0, 1) if batch_first else padded, _constant(longest, samples)


class _Packed(torch.autograd.Function):
    """(time, samples, ...) -> (time × samples, ...)."""

    @staticmethod
    def forward(context: FunctionCtx, x: Tensor) -> Tensor:
        context.shape = x.shape  # type: ignore[attr-defined]
        return torch.cat([x.reshape(-1, *x.shape[2:])] if x.is_contiguous() else list(x.unbind()))

    @staticmethod
    def backward(context: FunctionCtx, grad: Tensor) -> Tensor:
        shape: torch.Size = context.shape  # type: ignore[attr-defined]
        result = grad.new_zeros(shape)
        for at, part in enumerate(grad.view(shape).unbind()):
            result[at].copy_(part)
        return result


def _constant(value: int, count: int) -> Tensor:
    """A tensor on the CPU of `count` times this value, which the model may read."""
    result = torch.full((count,), value)
    if isinstance(result, FakeTensor):
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            result.constant = torch.full((count,), value)
    return result
