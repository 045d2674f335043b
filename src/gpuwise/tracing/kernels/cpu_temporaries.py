"""Memory that the CPU's kernels take and give back inside one operator, where no recording sees it.

A table: operator -> rule from its arguments to bytes beyond its results. Every rule was checked against the allocations
that PyTorch 2.13's profiler reports (tests/unit/test_tracing_cpu_temporaries.py does it again). Not covered, for they
are small and do not grow with the tensors: scratchpads of single oneDNN kernels, buffers of sorts, scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gpuwise.tracing.kernels.cpu_convolutions import convolution_backward_bytes, convolution_bytes
from gpuwise.tracing.kernels.cpu_rnn import rnn_backward_bytes, rnn_bytes
from gpuwise.tracing.kernels.onednn import has_tiles, multiplies_bf16, vector_floats

aten = torch.ops.aten


def workspace_bytes(func: Any, args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Bytes a call takes at most beyond what it returns.

    Arguments:
        outputs: tensors the call returned.
    """
    rule = _RULES.get(func._overloadpacket)
    if rule is not None:
        return rule(args, outputs)
    return _casts(args, outputs) if torch.Tag.pointwise in func.tags else 0


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copies(*tensors: Tensor) -> int:
    """Contiguous copies of those that are not."""
    return sum(_size(t) for t in tensors if not t.is_contiguous())


def _casts(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Copies of inputs in the type computed in, and a result in it that is cast at the end
    (TensorIteratorBase::compute_types in aten/src/ATen/TensorIterator.cpp)."""
    inputs = [a for a in args if isinstance(a, Tensor)]
    if len({t.dtype for t in inputs}) < 2 or not outputs or not outputs[0].is_floating_point():
        return 0
    common = outputs[0].dtype
    for tensor in inputs:
        if tensor.dim():  # a tensor of no dimension does not widen others
            common = torch.promote_types(common, tensor.dtype)
    moved = sum(t.numel() for t in inputs if t.dtype != common and t.dim())
    if outputs[0].dtype != common:
        moved += outputs[0].numel()
    return moved * common.itemsize


def _safe_softmax(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Which scores are masked, and which rows are so entirely (aten/src/ATen/native/transformers/attention.cpp)."""
    scores, dim = args[0], args[1]
    return int(scores.numel() + scores.numel() // scores.shape[dim])


def _attention_blocks(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Queries and keys that one thread works on at a time (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
    queries = query.shape[2]
    return min(256 if queries >= 768 else 64 if queries >= 192 else 32, queries), min(512, key.shape[2])


def _attention(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Scores, their maximum and sum, and the block of the result, in fp32 for each thread; half precision keeps the
    scores once more (cpu_flash_attention in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
    query, key = args[:2]
    rows, columns = _attention_blocks(query, key)
    half = 2 * rows * columns if query.element_size() == 2 else 0
    packed = _packed_keys(query, key, causal=len(args) > 4 and bool(args[4])) if query.dtype == torch.bfloat16 else 0
    return torch.get_num_threads() * (4 * rows * (columns + 2 + int(query.shape[3])) + half) + packed


def _packed_keys(query: Tensor, key: Tensor, *, causal: bool) -> int:
    """Keys and values as AMX's tiles want them, and for each thread a transposed block, where enough products follow
    (`need_pack`, same file)."""
    (samples, heads, queries, size), keys, threads = query.shape, key.shape[2], torch.get_num_threads()
    if not has_tiles() or min(queries, keys) < 64:
        return 0
    rows, columns = _attention_blocks(query, key)
    blocks = (samples * heads * -(-queries // rows) + threads - 1) // threads
    products = blocks * rows * (min(queries, keys) if causal else keys) * size
    if products < 4 * samples * key.shape[1] * keys * size:
        return 0
    even, even_size = keys + keys % 2, size + size % 2
    packed = samples * key.shape[1] * (even * size + keys * even_size)
    padded = rows * (even_size if size % 2 else 0) + rows * (columns % 2)  # queries, and scores in half precision
    return int(2 * (packed + threads * (columns * size + padded)))


def _attention_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Scores, their gradient and its row sums for each thread; half precision keeps the first two once more
    (cpu_flash_attention_backward, same file)."""
    query, key = args[1:3]
    rows, columns = _attention_blocks(query, key)
    half = 2 * 2 * rows * columns if query.element_size() == 2 else 0
    return torch.get_num_threads() * (4 * (2 * rows * columns + rows) + half)


def _half_product(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """oneDNN's blocks of a matrix product in half precision: for each thread what it multiplies with, and a block of a
    transposed first matrix. Typical sizes as measured; oneDNN chooses blocks by cache sizes (brgemm_matmul_utils.cpp)."""
    first = next(a for a in args if isinstance(a, Tensor) and a.dim() == 2)
    if first.element_size() != 2 or vector_floats() == 8:  # PyTorch's own products hold nothing
        return 0
    if first.dtype == torch.bfloat16 and not multiplies_bf16():  # the result in fp32
        return sum(4 * t.numel() for t in outputs)
    rows, common = first.shape
    block = 2 * min(rows, 256) * min(common, 928) if not first.is_contiguous() else 0
    return torch.get_num_threads() * 98_304 + block


def _batch_norm(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Scale and shift of each channel (aten/src/ATen/native/cpu/batch_norm_kernel.cpp)."""
    return 8 * int(args[0].shape[1])


def _batch_norm_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """A second gradient of the input (batch_norm_backward_cpu_template in aten/src/ATen/native/Normalization.cpp)."""
    return _size(args[1])


def _layer_norm(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """A contiguous input (layer_norm_cpu in aten/src/ATen/native/layer_norm.cpp)."""
    return _copies(args[0])


def _layer_norm_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Contiguous gradient and input, and for each thread a gradient of weight and bias (LayerNormBackwardKernelImpl in
    aten/src/ATen/native/cpu/layer_norm_kernel.cpp)."""
    grad, x, shape = args[:3]
    sums: int = 2 * torch.get_num_threads() * prod(shape) * x.element_size()
    return _copies(grad, x) + sums


def _group_norm_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Two sums a sample and channel (GroupNormBackwardKernelImpl in aten/src/ATen/native/cpu/group_norm_kernel.cpp)."""
    x = args[1]
    return 2 * 4 * int(x.shape[0] * x.shape[1])


def _squared_error(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Every error before they are averaged (mse_loss in aten/src/ATen/native/BinaryOps.cpp)."""
    return _size(args[0]) if outputs and outputs[0].dim() == 0 else 0


def _nearest(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Channels-last copies of input and result, where one thread computes (_use_vectorized_kernel_cond_2d in
    aten/src/ATen/native/cpu/UpSampleKernel.cpp)."""
    x = args[0]
    if torch.get_num_threads() > 1 or x.is_contiguous(memory_format=torch.channels_last):
        return 0
    return _size(x) + sum(_size(t) for t in outputs)


Rule = Callable[[Sequence[Any], Sequence[Tensor]], int]
_RULES: dict[Any, Rule] = {
    aten.convolution: convolution_bytes,
    aten.convolution_backward: convolution_backward_bytes,
    aten.mkldnn_rnn_layer: rnn_bytes,
    aten.mkldnn_rnn_layer_backward: rnn_backward_bytes,
    aten._safe_softmax: _safe_softmax,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mm: _half_product,
    aten.addmm: _half_product,
    aten.native_batch_norm: _batch_norm,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten.native_layer_norm: _layer_norm,
    aten.native_layer_norm_backward: _layer_norm_backward,
    aten.native_group_norm_backward: _group_norm_backward,
    aten.mse_loss: _squared_error,
    aten.upsample_nearest2d: _nearest,
}
