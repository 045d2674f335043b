"""The kernels a CUDA build would choose, registered for the virtual device.

Without this, attention falls apart into its products and batch norm into the portable kernel, and both keep other
tensors for backward than a GPU does. Attention, convolutions and recurrent layers have a module of their own; batch norm
is that of aten/src/ATen/native/Normalization.cpp. Whose kernels are taken is set by gpuwise.tracing.kernels.target.
"""

from __future__ import annotations

from math import prod
from typing import NoReturn

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuwise.runtime.parallel.grouped_mm import empty_grouped_mm
from gpuwise.tracing.kernels import attention, convolution, ctc, rnn

aten = torch.ops.aten
_libraries: list[torch.library.Library] = []  # a registration lives as long as its library


def register(device_type: str) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attention.attention, "AutogradPrivateUse1")
    library.impl("batch_norm", batch_norm, "AutogradPrivateUse1")
    library.impl("group_norm", group_norm, "AutogradPrivateUse1")
    library.impl("softmax.int", softmax, "AutogradPrivateUse1")
    library.impl("log_softmax.int", log_softmax, "AutogradPrivateUse1")
    rnn.register(library)
    convolution.register(device_type)
    # Kernels that CUDA has and other backends replace by their parts.
    for name in ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward"):
        library.impl(name, _never_runs, "PrivateUse1")
    register_op_impl(aten._fused_rms_norm.default)(_fused_rms_norm_shapes)
    register_op_impl(aten._grouped_mm.default)(_grouped_mm_shapes)
    register_op_impl(aten._cudnn_rnn.default)(rnn.forward_shapes)
    register_op_impl(aten._cudnn_rnn_backward.default)(rnn.backward_shapes)
    register_op_impl(aten._thnn_fused_gru_cell.default)(rnn.gru_cell_shapes)
    register_op_impl(aten._thnn_fused_gru_cell_backward.default)(rnn.gru_cell_backward_shapes)
    library.impl("ctc_loss.Tensor", ctc.ctc_loss, "AutogradPrivateUse1")
    for overload in ("default", "Tensor"):
        register_op_impl(getattr(aten._ctc_loss, overload))(ctc.forward_shapes)
        register_op_impl(getattr(aten._ctc_loss_backward, overload))(ctc.backward_shapes)
    library.impl("_fused_sgd_", lambda *args, **kwargs: None, "Meta")  # works in place; PyTorch gives it no shape rule
    _libraries.append(library)


def _never_runs(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError("fake tensors answer before a kernel of the virtual device could run")


def _fused_rms_norm_shapes(
    mode: FakeTensorMode,
    op: OpOverload,
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised tensor and the reciprocal root mean squares kept in fp32 for backward."""
    kept = (*x.shape[: x.dim() - len(normalized_shape)], *[1] * len(normalized_shape))
    with mode:
        return torch.empty_like(x), x.new_empty(kept, dtype=torch.float32)


def _grouped_mm_shapes(
    mode: FakeTensorMode,
    op: OpOverload,
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    with mode:
        return empty_grouped_mm(mat_a, mat_b, offs, bias, out_dtype)


def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """fp16 to fp32 inside one kernel, as CUDA has it; other types are cast first (aten/src/ATen/native/SoftMax.cpp)."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return aten._softmax(x, dim, True)
    return aten._softmax(x if dtype is None else x.to(dtype), dim, False)


def log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """As `softmax`."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return aten._log_softmax(x, dim, True)
    return aten._log_softmax(x if dtype is None else x.to(dtype), dim, False)


# Batches cuDNN takes in training and in evaluation, and elements (32-bit indices).
_CUDNN_NORM_SAMPLES = {True: 880_801, False: 65_535}
_CUDNN_NORM_ELEMENTS = 2**31 - 1


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """cuDNN's kernel where CUDA takes it, else PyTorch's own (_select_batch_norm_backend)."""
    if (
        cudnn_enabled
        and weight is not None
        and bias is not None
        and (mean is None) == (var is None)
        and (mean is not None or training)
        and torch.bfloat16 not in (x.dtype, weight.dtype)
        and (x.dtype != torch.float16 or weight.dtype == torch.float32)
        and x.dim() >= 3
        and x.shape[0] <= _CUDNN_NORM_SAMPLES[training]
        and x.numel() < _CUDNN_NORM_ELEMENTS
    ):
        x = x.contiguous(memory_format=suggest_memory_format(x))
        return aten.cudnn_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]
    return aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]


def group_norm(
    x: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """On a contiguous input, so one in channels-last is copied (aten/src/ATen/native/group_norm.cpp); other backends keep
    the layout."""
    samples, channels = x.shape[:2]
    return aten.native_group_norm(x.contiguous(), weight, bias, samples, channels, prod(x.shape[2:]), groups, eps)[0]
