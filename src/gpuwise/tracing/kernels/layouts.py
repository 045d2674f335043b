"""How operands of CUDA's kernels lie in memory: which are copied before a kernel reads them, which are read across rows.

Copies are made inside an operator, so that dispatch does not show them (paths are those of PyTorch's sources):
layer norm and RMS norm `expect_contiguous` (native/cuda/layer_norm_kernel.cu), softmax and its gradients `contiguous`
(native/cuda/SoftMax.cu), pooling makes its input contiguous in the layout it suggests (native/cuda/AveragePool2d.cu,
DilatedMaxPool2d.cu), im2col and col2im in PyTorch's own (native/cuda/Im2Col.cu, Col2Im.cu), and products copy what cuBLAS
cannot read (prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas in native/cuda/Blas.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket
from torch._prims_common import suggest_memory_format

from gpuwise.tracing.kernels import convolution
from gpuwise.tracing.operator_call import OperatorCall, tensors_in

aten = torch.ops.aten
_CONTIGUOUS: dict[OpOverloadPacket, slice] = {
    aten.native_layer_norm: slice(0, 1),
    aten.native_layer_norm_backward: slice(0, 2),
    aten._fused_rms_norm: slice(0, 1),
    aten._fused_rms_norm_backward: slice(0, 2),
    aten._softmax: slice(0, 1),
    aten._log_softmax: slice(0, 1),
    aten._softmax_backward_data: slice(0, 2),
    aten._log_softmax_backward_data: slice(0, 2),
    aten.im2col: slice(0, 1),
    aten.col2im: slice(0, 1),
}
_SUGGESTED: dict[OpOverloadPacket, slice] = {
    aten.avg_pool2d: slice(0, 1),
    aten.avg_pool2d_backward: slice(0, 2),
    aten.max_pool2d_with_indices: slice(0, 1),
    aten.max_pool2d_with_indices_backward: slice(0, 2),
}
_PRODUCTS: dict[OpOverloadPacket, slice] = {
    aten.mm: slice(0, 2),
    aten.bmm: slice(0, 2),
    aten.addmm: slice(1, 3),
    aten.baddbmm: slice(1, 3),
}

# Kinds of copies whose kernels have indices of their own.
_REARRANGE = {aten.im2col, aten.col2im, aten.cat, aten.stack, aten.constant_pad_nd, aten.repeat, aten.roll, aten.flip}


def copied_operands(call: OperatorCall) -> list[tuple[Tensor, bool]]:
    """Operands of a call that it copies to another layout before it computes, and whether the copy reads across rows."""
    if call.packet in _CONTIGUOUS:
        copied = [t for t in call.args[_CONTIGUOUS[call.packet]] if not t.is_contiguous()]
        return [(t, _crosses(t, -1)) for t in copied]
    if call.packet in _PRODUCTS:
        return [(t, _crosses(t, -1)) for t in call.args[_PRODUCTS[call.packet]] if not blas_reads(t)]
    if call.packet in _SUGGESTED:
        operands = call.args[_SUGGESTED[call.packet]]
        layout = suggest_memory_format(operands[-1])
        copied = [t for t in operands if not t.is_contiguous(memory_format=layout)]
        return [(t, _crosses(t, -3 if layout == torch.channels_last else -1)) for t in copied]
    return [(t, _crosses(t, -3)) for t in convolution.copied_operands(call)]


def blas_reads(tensor: Tensor) -> bool:
    """Whether cuBLAS reads a matrix, or a batch of them, as it lies: one dimension has unit stride, none a stride of zero."""
    if tensor.dim() < 2:
        return True
    (rows, columns), (between_rows, between_columns) = tensor.shape[-2:], tensor.stride()[-2:]
    return (
        (between_columns == 1 and between_rows >= columns)
        or (between_rows == 1 and between_columns >= rows)
        or (tensor.is_contiguous() and between_rows != 0 and between_columns != 0)
    )


def is_turned(call: OperatorCall) -> bool:
    """Whether an elementwise operation or a copy reads an operand across its rows: the dimension along which its result is
    contiguous is not the one along which the operand is. Neighbouring threads then read from as many rows, of which each load
    uses a few bytes."""
    if call.packet in _REARRANGE or not call.outputs:
        return False
    result = call.outputs[0]
    inner = _inner(result)
    return inner is not None and any(_crosses(t, inner - result.dim()) for t in tensors_in(call.args))


def _inner(tensor: Tensor) -> int | None:
    """The dimension of unit stride, of those that are longer than 1; None without one."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return next((dim for dim, (size, stride) in enumerate(strides) if size > 1 and stride == 1), None)


def _crosses(operand: Tensor, inner: int) -> bool:
    """Whether an operand lies along another dimension than the one its kernel goes along: `inner`, counted from the last. One
    that is broadcast along it is read once."""
    if -inner > operand.dim() or operand.shape[inner] == 1 or operand.stride(inner) in (0, 1):
        return False
    return _inner(operand) is not None
