"""Memory that the CPU's kernels take and free inside one operator, which the recorder cannot see.

A table: operator -> rule from its arguments to bytes beyond its results. Every rule was checked against the allocations
that PyTorch 2.13's profiler reports (tests/unit/test_tracing_cpu_temporaries.py does it again). Not covered, for they
are small and do not grow with the tensors: scratchpads of single oneDNN kernels, buffers of sorts, scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket

from gpuwise.tracing.kernels import ctc
from gpuwise.tracing.kernels.cpu_convolutions import convolution_backward_bytes, convolution_bytes
from gpuwise.tracing.kernels.cpu_rnn import rnn_backward_bytes, rnn_bytes
from gpuwise.tracing.kernels.instruction_sets import has_tiles, multiplies_bf16, vector_floats
from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten


def workspace_bytes(call: OperatorCall) -> int:
    """Bytes a call takes at most beyond what it returns."""
    rule = _RULES.get(call.packet)
    if rule is not None:
        return rule(call)
    return _casts(call) if torch.Tag.pointwise in call.op.tags else 0


def _copies(*tensors: Tensor) -> int:
    """Contiguous copies of those that are not."""
    return sum(t.nbytes for t in tensors if not t.is_contiguous())


def _casts(call: OperatorCall) -> int:
    """Copies of inputs in the type computed in, and a result in it that is cast at the end
    (TensorIteratorBase::compute_types in aten/src/ATen/TensorIterator.cpp)."""
    inputs, outputs = [a for a in call.args if isinstance(a, Tensor)], call.outputs
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


def _safe_softmax(call: OperatorCall) -> int:
    """One byte for each score, and one for each row: whether it is masked (aten/src/ATen/native/transformers/attention.cpp)."""
    scores, dim = call.args[:2]
    return int(scores.numel() + scores.numel() // scores.shape[dim])


def _attention_blocks(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Queries and keys that one thread works on at a time (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
    queries = query.shape[2]
    return min(256 if queries >= 768 else 64 if queries >= 192 else 32, queries), min(512, key.shape[2])


def _attention(call: OperatorCall) -> int:
    """Scores, their maximum and sum, and the block of the result, in fp32 for each thread; half precision keeps the
    scores once more (cpu_flash_attention in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""
    query, key = call.tensors(0, 1)
    rows, columns = _attention_blocks(query, key)
    half = 2 * rows * columns if query.element_size() == 2 else 0
    packed = _packed_keys(query, key, causal=len(call.args) > 4 and bool(call.args[4])) if query.dtype == torch.bfloat16 else 0
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


def _attention_backward(call: OperatorCall) -> int:
    """Scores, their gradient and its row sums for each thread; half precision keeps the first two once more
    (cpu_flash_attention_backward, same file)."""
    query, key = call.tensors(1, 2)
    rows, columns = _attention_blocks(query, key)
    half = 2 * 2 * rows * columns if query.element_size() == 2 else 0
    return torch.get_num_threads() * (4 * (2 * rows * columns + rows) + half)


def _half_product(call: OperatorCall) -> int:
    """oneDNN's blocks of a matrix product in half precision: for each thread what it multiplies with, and a block of a
    transposed first matrix. Typical sizes as measured; oneDNN chooses blocks by cache sizes (brgemm_matmul_utils.cpp)."""
    first = next(a for a in call.args if isinstance(a, Tensor) and a.dim() == 2)
    if first.element_size() != 2 or vector_floats() == 8:  # PyTorch's own products hold nothing
        return 0
    if first.dtype == torch.bfloat16 and not multiplies_bf16():  # the result in fp32
        return sum(4 * t.numel() for t in call.outputs)
    rows, common = first.shape
    block = 2 * min(rows, 256) * min(common, 928) if not first.is_contiguous() else 0
    return torch.get_num_threads() * 98_304 + block


def _batch_norm(call: OperatorCall) -> int:
    """Scale and shift of each channel (aten/src/ATen/native/cpu/batch_norm_kernel.cpp)."""
    return 8 * call.tensor(0).shape[1]


def _batch_norm_backward(call: OperatorCall) -> int:
    """A second gradient of the input (batch_norm_backward_cpu_template in aten/src/ATen/native/Normalization.cpp)."""
    return call.tensor(1).nbytes


def _layer_norm(call: OperatorCall) -> int:
    """A contiguous input (layer_norm_cpu in aten/src/ATen/native/layer_norm.cpp)."""
    return _copies(call.tensor(0))


def _layer_norm_backward(call: OperatorCall) -> int:
    """Contiguous gradient and input, and for each thread a gradient of weight and bias (LayerNormBackwardKernelImpl in
    aten/src/ATen/native/cpu/layer_norm_kernel.cpp)."""
    grad, x = call.tensors(0, 1)
    sums = 2 * torch.get_num_threads() * prod(call.args[2]) * x.element_size()
    return _copies(grad, x) + sums


def _group_norm_backward(call: OperatorCall) -> int:
    """Two sums a sample and channel (GroupNormBackwardKernelImpl in aten/src/ATen/native/cpu/group_norm_kernel.cpp)."""
    x = call.tensor(1)
    return 2 * 4 * x.shape[0] * x.shape[1]


def _squared_error(call: OperatorCall) -> int:
    """Every error before they are averaged (mse_loss in aten/src/ATen/native/BinaryOps.cpp)."""
    return call.tensor(0).nbytes if call.outputs and call.outputs[0].dim() == 0 else 0


def _nearest(call: OperatorCall) -> int:
    """Channels-last copies of input and result, where one thread computes (_use_vectorized_kernel_cond_2d in
    aten/src/ATen/native/cpu/UpSampleKernel.cpp)."""
    x = call.tensor(0)
    if torch.get_num_threads() > 1 or x.is_contiguous(memory_format=torch.channels_last):
        return 0
    return x.nbytes + sum(t.nbytes for t in call.outputs)


def _max_pool_backward(call: OperatorCall) -> int:
    """Copies, in the layout of the gradient that comes in, of what has another: indices and result
    (max_pool2d_backward_kernel_impl in aten/src/ATen/native/cpu/MaxPoolKernel.cpp)."""
    gradient, indices, result = call.tensor(0), call.tensor(7), call.outputs[0]
    last = gradient.is_contiguous(memory_format=torch.channels_last) and not gradient.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    return sum(t.nbytes for t in (gradient, indices, result) if not t.is_contiguous(memory_format=layout))


_RULES: dict[OpOverloadPacket, Callable[[OperatorCall], int]] = {
    aten.convolution: convolution_bytes,
    aten.convolution_backward: convolution_backward_bytes,
    aten._ctc_loss_backward: ctc.backward_bytes,
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
    aten.max_pool2d_with_indices_backward: _max_pool_backward,
}
