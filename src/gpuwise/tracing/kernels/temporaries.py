"""Memory that CUDA's kernels take and give back inside one operator, where no recording sees it.

A table: operator -> rule from its arguments to bytes beyond its results, with the PyTorch source each comes from. What
grows in steps (attention's backward, embedding's, layer norm's, sorting) is in gpuwise.trace.stepped, since families need it at
any size. Rules that end in "upper bound" stand for what cuDNN or cub decides at run time.

Looked at and found to take nothing: forward of layer norm and RMS norm (layer_norm_kernel.cu), log_softmax and its
backward (SoftMax.cu), dropout (Dropout.cu), nll_loss (Loss.cu, NLLLoss2d.cu), pooling and upsampling, cat
(Shape.cu: its metadata travels as kernel arguments), gather, scatter_add and index_add (Indexing.cu), cumsum over one
dimension of several (ScanUtils.cuh), fused and foreach updates and amp's unscaling (MultiTensorApply.cuh), cuDNN's batch
norm (its workspace is a few rows of channels). Left out for they are small: split reductions (Reduce.cuh: at most a few
hundred kB), flash attention's split of the keys (flash_api.cpp: only below about 170 blocks of 64 queries), cub's scan
state, cuDNN's dropout state (2 MB a device). cuBLAS workspaces are added when a trace is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from gpuwise.notes import Note
from gpuwise.notes.job import convolution_workspaces, recurrent_reserve
from gpuwise.trace import stepped
from gpuwise.tracing.kernels import convolution, rnn

aten = torch.ops.aten
Rule = Callable[[Sequence[Any], Sequence[Tensor]], int]  # (arguments, results) -> bytes

_INDEX_BYTES = 8  # int64


def workspace_bytes(func: Any, args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Bytes a call takes beyond what it returns, without what grows in steps."""
    rule = _RULES.get(func._overloadpacket)
    return 0 if rule is None else rule(args, outputs)


def notes(names: Iterable[str]) -> tuple[Note, ...]:
    """The notes beside a recording that has operators of these names ("aten.convolution.default")."""
    packets = {name.split(".")[1] for name in names if name.count(".") == 2}
    makers = [(convolution_workspaces, {"convolution", "convolution_backward"}), (recurrent_reserve, {"_cudnn_rnn"})]
    return tuple(make() for make, operators in makers if operators & packets)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copies_of(*positions: int) -> Rule:
    """Contiguous copies of the arguments at these positions that are not contiguous."""

    def rule(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
        tensors = [args[i] for i in positions if i < len(args)]
        return sum(_size(t) for t in tensors if isinstance(t, Tensor) and not t.is_contiguous())

    return rule


def _softmax_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """grad × output (softmax_backward_cuda_out in aten/src/ATen/native/cuda/SoftMax.cu)."""
    grad, output = args[:2]
    return max(_size(grad), _size(output)) + (0 if output.is_contiguous() else _size(output))


def _product(first: int) -> Rule:
    """Copies of operands that cuBLAS cannot read as they lie: neither dimension has unit stride, or a stride of zero.

    prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas in aten/src/ATen/native/cuda/Blas.cpp.
    first: the position of the first operand.
    """

    def rule(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
        return sum(_size(t) for t in args[first : first + 2] if not _blas_reads(t))

    return rule


def _blas_reads(tensor: Tensor) -> bool:
    if tensor.dim() < 2:
        return True
    (rows, columns), (between_rows, between_columns) = tensor.shape[-2:], tensor.stride()[-2:]
    return (
        (between_columns == 1 and between_rows >= columns)
        or (between_rows == 1 and between_columns >= rows)
        or (tensor.is_contiguous() and between_rows != 0 and between_columns != 0)
    )


def _heads_inside(tensor: Tensor) -> bool:
    """Whether (batch, heads, sequence, size) lies as (batch, sequence, heads, size), as attention kernels want it."""
    _, heads, length, size = tensor.shape
    wanted = (heads * length * size, size, heads * size, 1)
    return all(have == want or n == 1 for have, want, n in zip(tensor.stride(), wanted, tensor.shape, strict=True))


def _flash_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Copies of gradient and output; dk and dv of every query head where heads are grouped (flash_api.cpp, mha_bwd)."""
    grad, query, key, _, out = args[:5]
    copies = sum(_size(t) for t in (grad, out) if not _heads_inside(t))
    if key.shape[1] == query.shape[1]:
        return copies
    return copies + 2 * _size(key) // key.shape[1] * query.shape[1]


def _efficient_forward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """The output in fp32 where half precision does not fit in registers: heads over 128 wide
    (kNeedsOutputAccumulatorBuffer in mem_eff_attention/kernel_forward.h)."""
    query, value = args[0], args[2]
    if query.element_size() != 2 or max(query.shape[3], value.shape[3]) <= 128:
        return 0
    return 4 * int(prod(query.shape[:3])) * value.shape[3]


def _efficient_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """A copy of the gradient (attention_backward.cu)."""
    return 0 if _heads_inside(args[0]) else _size(args[0])


def _cudnn_attention_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """dq in fp32 and row sums; every head's dk and dv where heads are grouped. Upper bound."""
    _, query, key = args[:3]
    rows = prod(query.shape[:3])
    grouped = 0 if key.shape[1] == query.shape[1] else 2 * _size(key) // key.shape[1] * query.shape[1]
    return 4 * rows * (query.shape[3] + 2) + grouped


def _group_norm(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Scale and shift of each channel; mean and deviation in fp32 for half precision (group_norm_kernel.cu)."""
    x, weight = args[:2]
    samples, channels, positions, groups = args[3:7]
    statistics = 2 * samples * groups if x.element_size() == 2 else 0
    fused = 2 * samples * channels if positions > 1 and weight is not None else 0
    return (statistics + fused) * max(4, x.element_size()) + (0 if x.is_contiguous() else _size(x))


def _group_norm_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Sums over each channel (two, and a scale), and two numbers a group (group_norm_kernel.cu)."""
    grad, x, weight = args[0], args[1], args[4]
    samples, channels, positions, groups = args[5:9]
    channel = 0 if positions == 1 else 2 + (weight is not None)
    return samples * (channel * channels + 2 * groups) * max(4, x.element_size()) + _copies_of(0, 1)((grad, x), outputs)


def _batch_norm_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Two sums a channel, once more for each of up to 128 blocks where channels are last
    (batch_norm_backward_cuda in Normalization.cu; staging_data in Normalization.cuh). Upper bound."""
    x = args[1]
    blocks = 128 if x.dim() > 2 and not x.is_contiguous() else 1
    return 4 * x.shape[1] * 2 * (1 + blocks)


def _cudnn_norm_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """The gradient in the layout of the input (aten/src/ATen/native/cudnn/BatchNorm.cpp)."""
    x, grad = args[:2]
    return 0 if grad.is_contiguous(memory_format=suggest_memory_format(x)) else _size(grad)


def _foreach_norm(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """A partial norm for each 65,536 numbers of the largest tensor, for every tensor (ForeachReduceOp.cu)."""
    tensors = args[0]
    return 4 * len(tensors) * max((-(-t.numel() // 65536) for t in tensors), default=0)


def _index_put(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Adding to places that may repeat sorts them: positions and order, before and after, and cub's copy of both
    (index_put_with_sort_kernel in Indexing.cu). Upper bound."""
    indices, values = args[1], args[2]
    if not (len(args) > 3 and args[3]):
        return 0
    count = prod(torch.broadcast_shapes(*(i.shape for i in indices if i is not None)))
    return 6 * count * _INDEX_BYTES + (0 if values.is_contiguous() else _size(values))


def _embedding_bag_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Sorted indices and partial sums in fp32 (EmbeddingBag.cu, EmbeddingBackwardKernel.cu). Upper bound."""
    grad, indices = args[:2]
    return indices.numel() * (5 * _INDEX_BYTES + 11 * grad.shape[-1] * 4 // 10)


def _topk(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Only results over 4,096 long are sorted with memory (TensorTopK.cu, Sorting.cpp). Upper bound."""
    best, dim = outputs[0], args[2] if len(args) > 2 else -1
    length = best.shape[dim] if best.dim() else 1
    return stepped.sort(str(best.dtype).removeprefix("torch."), best.numel() // max(1, length), length, 0, 0)


def _multinomial(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """The distribution, normalised, and its prefix sums (MultinomialKernel.cu)."""
    return 3 * _size(args[0])


def _convolution(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Upper bound: input, filter and output in the layout of the tensor cores' kernels (cuDNN's nchwToNhwc). In
    channels-last, only what does not lie so is copied."""
    x, weight = args[:2]
    if convolution.channels_last(x, weight):
        return sum(map(_size, convolution.copied(aten.convolution.default, args)))
    return _own_layout(x, weight, outputs[0], depthwise=_is_depthwise(x, weight, args[8]))


def _convolution_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """As `_convolution`, with the filter's gradient in fp32; gradients of input and filter come one after the other."""
    grad, x, weight = args[:3]
    depthwise, needed = _is_depthwise(x, weight, args[9]), args[10]
    partial = max(0, 4 - weight.element_size()) * weight.numel() if needed[1] else 0
    if convolution.channels_last(x, weight):
        return sum(map(_size, convolution.copied(aten.convolution_backward.default, args))) + partial
    if not (needed[0] or needed[1]) or depthwise:
        return 0
    return _own_layout(x, weight, grad, depthwise=depthwise) + partial


def _is_depthwise(x: Tensor, weight: Tensor, groups: int) -> bool:
    """PyTorch has kernels of its own for these, without workspace (aten/src/ATen/native/cuda/DepthwiseConv2d.cu)."""
    return groups > 1 and groups == x.shape[1] and weight.shape[0] % groups == 0


def _own_layout(x: Tensor, weight: Tensor, y: Tensor, *, depthwise: bool) -> int:
    if depthwise or x.element_size() == 8:
        return 0
    unit = 16 // x.element_size()  # channels are padded to 128 bits
    return sum(_size(t) // t.shape[1] * (-(-t.shape[1] // unit) * unit) for t in (x, weight, y))


def _rnn(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """cuDNN's workspace, and the input with time first (aten/src/ATen/native/cudnn/RNN.cpp)."""
    x, weight, hx, mode, units, batch_first = args[0], args[1], args[4], args[6], args[7], args[10]
    return rnn.workspace_bytes(x, weight, hx, mode, units) + (_size(x) if batch_first else 0)


def _rnn_backward(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """As `_rnn`, and the gradient of the output with time first."""
    x, weight, hx, output, mode, units, batch_first = args[0], args[1], args[4], args[6], args[10], args[11], args[14]
    turned = _size(x) + _size(output) if batch_first else 0
    return rnn.workspace_bytes(x, weight, hx, mode, units) + turned


_RULES: dict[Any, Rule] = {
    aten.mm: _product(0),
    aten.bmm: _product(0),
    aten.addmm: _product(1),
    aten.baddbmm: _product(1),
    aten._softmax: _copies_of(0),
    aten._log_softmax: _copies_of(0),
    aten._softmax_backward_data: _softmax_backward,
    aten._log_softmax_backward_data: _copies_of(0, 1),
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    aten._scaled_dot_product_cudnn_attention_backward: _cudnn_attention_backward,
    aten.native_layer_norm: _copies_of(0),
    aten.native_layer_norm_backward: _copies_of(0, 1),
    aten._fused_rms_norm: _copies_of(0),
    aten._fused_rms_norm_backward: _copies_of(0, 1),
    aten.native_group_norm: _group_norm,
    aten.native_group_norm_backward: _group_norm_backward,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten.cudnn_batch_norm_backward: _cudnn_norm_backward,
    aten.embedding_dense_backward: _copies_of(0, 1),
    aten._embedding_bag_dense_backward: _embedding_bag_backward,
    aten.index_put: _index_put,
    aten.index_put_: _index_put,
    aten._index_put_impl_: _index_put,
    aten._unsafe_index_put: _index_put,
    aten._foreach_norm: _foreach_norm,
    aten.nll_loss_forward: _copies_of(0),
    aten.nll_loss2d_forward: _copies_of(0),
    aten.cumsum: _copies_of(0),
    aten.cumprod: _copies_of(0),
    aten.topk: _topk,
    aten.multinomial: _multinomial,
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten._cudnn_rnn: _rnn,
    aten._cudnn_rnn_backward: _rnn_backward,
}
