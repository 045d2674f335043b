"""Memory that CUDA's kernels take and free inside one operator, which the recorder cannot see.

A table: operator -> rule from its arguments to bytes beyond its results, with the PyTorch source each comes from. What
grows in steps (attention's backward, embedding's, layer norm's, sorting) is in gpuwise.trace.stepped, since families need it at
any size. Rules that end in "upper bound" are of cuDNN and cub, which decide at run time.

Operators that take nothing: forward of layer norm and RMS norm (layer_norm_kernel.cu), log_softmax and its
backward (SoftMax.cu), dropout (Dropout.cu), nll_loss (Loss.cu, NLLLoss2d.cu), pooling and upsampling, cat
(Shape.cu: its metadata travels as kernel arguments), gather, scatter_add and index_add (Indexing.cu), cumsum over one
dimension of several (ScanUtils.cuh), fused and foreach updates and amp's unscaling (MultiTensorApply.cuh), cuDNN's batch
norm (its workspace is a few rows of channels). Left out for they are small: split reductions (Reduce.cuh: at most a few
hundred kB), flash attention's split of the keys (flash_api.cpp: only below about 170 blocks of 64 queries), cub's scan
state, cuDNN's dropout state (2 MB a device). cuBLAS workspaces are added when a trace is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket
from torch._prims_common import suggest_memory_format

from gpuwise.notes import Note
from gpuwise.notes.job import convolution_workspaces, recurrent_reserve
from gpuwise.trace import stepped
from gpuwise.tracing.kernels import attention_temporaries, ctc, rnn
from gpuwise.tracing.kernels.convolution_temporaries import convolution_backward_bytes, convolution_bytes
from gpuwise.tracing.kernels.layouts import blas_reads
from gpuwise.tracing.kernels.schemas import CudnnRnnArguments, CudnnRnnBackwardArguments
from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
Rule = Callable[[OperatorCall], int]  # bytes

_INDEX_BYTES = 8  # int64


def workspace_bytes(call: OperatorCall) -> int:
    """Bytes a call takes beyond what it returns, without what grows in steps."""
    rule = _RULES.get(call.packet)
    return 0 if rule is None else rule(call)


def notes(names: Iterable[str]) -> tuple[Note, ...]:
    """The notes beside a recording that has operators of these names ("aten.convolution.default")."""
    packets = {name.split(".")[1] for name in names if name.count(".") == 2}
    makers = [(convolution_workspaces, {"convolution", "convolution_backward"}), (recurrent_reserve, {"_cudnn_rnn"})]
    return tuple(make() for make, operators in makers if operators & packets)


def _copies_of(*positions: int) -> Rule:
    """Contiguous copies of the arguments at these positions that are not contiguous."""

    def rule(call: OperatorCall) -> int:
        tensors = [call.args[i] for i in positions if i < len(call.args)]
        return sum(t.nbytes for t in tensors if isinstance(t, Tensor) and not t.is_contiguous())

    return rule


def _softmax_backward(call: OperatorCall) -> int:
    """grad × output (softmax_backward_cuda_out in aten/src/ATen/native/cuda/SoftMax.cu)."""
    grad, output = call.tensors(0, 1)
    return max(grad.nbytes, output.nbytes) + (0 if output.is_contiguous() else output.nbytes)


def _product(first: int) -> Rule:
    """Copies of operands that cuBLAS cannot read as they lie: neither dimension has unit stride, or a stride of zero.

    prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas in aten/src/ATen/native/cuda/Blas.cpp.
    first: the position of the first operand.
    """

    def rule(call: OperatorCall) -> int:
        return sum(t.nbytes for t in call.tensors(first, first + 1) if not blas_reads(t))

    return rule


def _group_norm(call: OperatorCall) -> int:
    """Scale and shift of each channel; mean and deviation in fp32 for half precision (group_norm_kernel.cu)."""
    x, weight = call.args[:2]
    samples, channels, positions, groups = call.args[3:7]
    statistics = 2 * samples * groups if x.element_size() == 2 else 0
    fused = 2 * samples * channels if positions > 1 and weight is not None else 0
    sums: int = (statistics + fused) * max(4, x.element_size())
    return sums + (0 if x.is_contiguous() else x.nbytes)


def _group_norm_backward(call: OperatorCall) -> int:
    """Sums over each channel (two, and a scale), and two numbers a group (group_norm_kernel.cu)."""
    x, weight = call.tensor(1), call.args[4]
    samples, channels, positions, groups = call.args[5:9]
    channel = 0 if positions == 1 else 2 + (weight is not None)
    sums: int = samples * (channel * channels + 2 * groups) * max(4, x.element_size())
    return sums + _copies_of(0, 1)(call)


def _batch_norm_backward(call: OperatorCall) -> int:
    """Two sums a channel, once more for each of up to 128 blocks where channels are last
    (batch_norm_backward_cuda in Normalization.cu; staging_data in Normalization.cuh). Upper bound."""
    x = call.tensor(1)
    blocks = 128 if x.dim() > 2 and not x.is_contiguous() else 1
    return 4 * x.shape[1] * 2 * (1 + blocks)


def _cudnn_norm_backward(call: OperatorCall) -> int:
    """The gradient in the layout of the input (aten/src/ATen/native/cudnn/BatchNorm.cpp)."""
    x, grad = call.tensors(0, 1)
    return 0 if grad.is_contiguous(memory_format=suggest_memory_format(x)) else grad.nbytes


def _foreach_norm(call: OperatorCall) -> int:
    """A partial norm for each 65,536 numbers of the largest tensor, for every tensor (ForeachReduceOp.cu)."""
    tensors: list[Tensor] = call.args[0]
    return 4 * len(tensors) * max((-(-t.numel() // 65536) for t in tensors), default=0)


def _index_put(call: OperatorCall) -> int:
    """Adding to positions that may repeat sorts them: positions and order, before and after, and cub's copy of both
    (index_put_with_sort_kernel in Indexing.cu). Upper bound."""
    indices, values = call.args[1], call.tensor(2)
    if not (len(call.args) > 3 and call.args[3]):
        return 0
    count = prod(torch.broadcast_shapes(*(i.shape for i in indices if i is not None)))
    return 6 * count * _INDEX_BYTES + (0 if values.is_contiguous() else values.nbytes)


def _embedding_bag_backward(call: OperatorCall) -> int:
    """Sorted indices and partial sums in fp32 (EmbeddingBag.cu, EmbeddingBackwardKernel.cu). Upper bound."""
    grad, indices = call.tensors(0, 1)
    return indices.numel() * (5 * _INDEX_BYTES + 11 * grad.shape[-1] * 4 // 10)


def _topk(call: OperatorCall) -> int:
    """Only results over 4,096 long are sorted with memory (TensorTopK.cu, Sorting.cpp). Upper bound."""
    best, dim = call.outputs[0], call.args[2] if len(call.args) > 2 else -1
    length = best.shape[dim] if best.dim() else 1
    return stepped.sort(str(best.dtype).removeprefix("torch."), best.numel() // max(1, length), length, 0, 0)


def _multinomial(call: OperatorCall) -> int:
    """The distribution, normalised, and its prefix sums (MultinomialKernel.cu)."""
    return 3 * call.tensor(0).nbytes


def _rnn(call: OperatorCall) -> int:
    """cuDNN's workspace, and the input with time first (aten/src/ATen/native/cudnn/RNN.cpp)."""
    arguments = CudnnRnnArguments(*call.args)
    return rnn.workspace_bytes(arguments) + (arguments.x.nbytes if arguments.batch_first else 0)


def _rnn_backward(call: OperatorCall) -> int:
    """As `_rnn`, and the gradient of the output with time first."""
    arguments = CudnnRnnBackwardArguments(*call.args)
    turned_bytes = arguments.x.nbytes + arguments.output.nbytes if arguments.batch_first else 0
    return rnn.workspace_bytes(arguments) + turned_bytes


_RULES: dict[OpOverloadPacket, Rule] = {
    aten.mm: _product(0),
    aten.bmm: _product(0),
    aten.addmm: _product(1),
    aten.baddbmm: _product(1),
    aten._softmax: _copies_of(0),
    aten._log_softmax: _copies_of(0),
    aten._softmax_backward_data: _softmax_backward,
    aten._log_softmax_backward_data: _copies_of(0, 1),
    aten._scaled_dot_product_flash_attention_backward: attention_temporaries.flash_backward,
    aten._scaled_dot_product_efficient_attention: attention_temporaries.efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward: attention_temporaries.efficient_backward,
    aten._scaled_dot_product_cudnn_attention_backward: attention_temporaries.cudnn_backward,
    aten.native_layer_norm: _copies_of(0),
    aten.native_layer_norm_backward: _copies_of(0, 1),
    aten._fused_rms_norm: _copies_of(0),
    aten._fused_rms_norm_backward: _copies_of(0, 1),
    aten.native_group_norm: _group_norm,
    aten.native_group_norm_backward: _group_norm_backward,
    aten.native_batch_norm_backward: _batch_norm_backward,
    aten.cudnn_batch_norm_backward: _cudnn_norm_backward,
    aten.embedding_dense_backward: _copies_of(0, 1),
    aten._embedding_bag_backward: _embedding_bag_backward,
    aten._embedding_bag_dense_backward: _embedding_bag_backward,
    aten.index_put: _index_put,
    aten.index_put_: _index_put,
    aten._index_put_impl_: _index_put,
    aten._unsafe_index_put: _index_put,
    aten._foreach_norm: _foreach_norm,
    aten._ctc_loss_backward: ctc.backward_bytes,
    aten.nll_loss_forward: _copies_of(0),
    aten.nll_loss2d_forward: _copies_of(0),
    aten.cumsum: _copies_of(0),
    aten.cumprod: _copies_of(0),
    aten.topk: _topk,
    aten.multinomial: _multinomial,
    aten.convolution: convolution_bytes,
    aten.convolution_backward: convolution_backward_bytes,
    aten._cudnn_rnn: _rnn,
    aten._cudnn_rnn_backward: _rnn_backward,
}
