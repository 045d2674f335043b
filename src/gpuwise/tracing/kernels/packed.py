"""Packed sequences on fake tensors: their lengths are data, so all are taken to be as long as the longest may be.

What CUDA does with them then (aten/src/ATen/native/PackedSequence.cpp): packing is one copy with time first, and its gradient
zeros and a copy for each time; padding is a buffer of the padding value and a copy. On a CPU one sequence of several is taken
to be a token shorter: oneDNN runs an LSTM over equal lengths as one operator, which real batches that are packed hardly are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx

from gpuwise.tracing.kernels.rnn import MODES
from gpuwise.tracing.patching import patched


@contextmanager
def packing() -> Iterator[None]:
    """Inside, torch.nn.utils.rnn packs and pads fake sequences, and recurrent layers read them."""
    with ExitStack() as stack:
        for name in MODES:
            stack.enter_context(patched(torch._VF, name, _reading_lengths(getattr(torch._VF, name))))
        stack.enter_context(patched(torch._VF, "_pack_padded_sequence", _pack))
        stack.enter_context(patched(torch._VF, "_pad_packed_sequence", _pad))
        yield


def _reading_lengths(layer: Callable[..., object]) -> Callable[..., object]:
    """A recurrent layer that sees how many rows each time has: PyTorch's own layers on a CPU look at these numbers."""

    def reading(x: Tensor, lengths_or_state: object, *args: object) -> object:
        if isinstance(lengths_or_state, FakeTensor) and x.device.type == "cpu" and lengths_or_state.constant is not None:
            return layer(x, lengths_or_state.constant, *args)
        return layer(x, lengths_or_state, *args)

    return reading


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """x (time, samples, ...) or (samples, time, ...) -> rows of all times, and how many rows each time has."""
    times, samples = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    shorter = int(x.device.type == "cpu" and times > 1 and samples > 1)
    rows: Tensor = _Packed.apply(x.transpose(0, 1) if batch_first else x, shorter)
    return rows, _constant([samples] * (times - 1) + [samples - shorter])


def _pad(rows: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, times: int) -> tuple[Tensor, Tensor]:
    """The sequences with padding up to `times`, and their lengths."""
    longest = batch_sizes.shape[0]
    samples = -(-rows.shape[0] // longest)
    padded = rows.new_full((times, samples, *rows.shape[1:]), padding_value)
    missing = samples * longest - rows.shape[0]
    if missing:
        before = samples * (longest - 1)
        padded[: longest - 1] = rows[:before].view(longest - 1, samples, *rows.shape[1:])
        padded[longest - 1, : samples - missing] = rows[before:]
    else:
        padded[:longest] = rows.view(longest, samples, *rows.shape[1:])
    lengths = [longest] * (samples - missing) + [longest - 1] * missing
    return padded.transpose(0, 1) if batch_first else padded, _constant(lengths)


class _Packed(torch.autograd.Function):
    """(time, samples, ...), tokens of the last time that are missing -> rows (time × samples - missing, ...)."""

    @staticmethod
    def forward(context: FunctionCtx, x: Tensor, missing: int) -> Tensor:
        context.shape, context.missing = x.shape, missing  # type: ignore[attr-defined]
        if missing:
            return torch.cat([x[:-1].reshape(-1, *x.shape[2:]), x[-1, :-missing]])
        return torch.cat([x.reshape(-1, *x.shape[2:])] if x.is_contiguous() else list(x.unbind()))

    @staticmethod
    def backward(context: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        shape: torch.Size = context.shape  # type: ignore[attr-defined]
        result = grad.new_zeros(shape)
        for at, part in enumerate(grad.split(shape[1])):
            result[at, : len(part)].copy_(part)
        return result, None


def _constant(values: list[int]) -> Tensor:
    """A tensor of these numbers on the CPU, which the model may read."""
    result = torch.tensor(values)
    if isinstance(result, FakeTensor):
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            result.constant = torch.tensor(values)
    return result
