"""The layout convolutions compute in on CUDA, which fake tensors know for PyTorch's own devices alone.

cuDNN takes channels-last where input or filter lie so, of images or volumes, depthwise ones included, and first copies those
that do not (cudnn_conv_suggest_memory_format in aten/src/ATen/native/ConvUtils.h; Convolution.cpp). Sequences are images of one
row, which are made contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
# A rule of fake tensors: (mode, operator, *its arguments) -> its results.
ShapeRule: TypeAlias = Callable[..., Tensor | tuple[Tensor | None, ...]]
_INNERMOST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by dimensions: of images, of volumes
_OPERANDS = {aten.convolution.default: slice(0, 2), aten.convolution_backward.default: slice(0, 3)}


def channels_last(x: Tensor, weight: Tensor) -> bool:
    """Whether cuDNN computes a convolution of these in channels-last."""
    if x.dim() not in _INNERMOST or torch.float64 in (x.dtype, weight.dtype):
        return False
    return _INNERMOST[x.dim()] in (suggest_memory_format(x), suggest_memory_format(weight))


def convolution_operands(call: OperatorCall) -> tuple[Tensor, Tensor]:
    """Input and filter of a convolution, or of its backward."""
    x, weight = call.args[1:3] if call.op is aten.convolution_backward.default else call.args[:2]
    return x, weight


def copied_operands(call: OperatorCall) -> list[Tensor]:
    """Operands of a call that are copied to channels-last before it computes; none where it computes contiguously, or is
    no convolution."""
    if call.op not in _OPERANDS:
        return []
    operands = call.args[_OPERANDS[call.op]]
    if not channels_last(*operands[-2:]):
        return []
    return [t for t in operands if not t.is_contiguous(memory_format=_INNERMOST[t.dim()])]


def register(device_type: str) -> None:
    """Lets convolutions of fake tensors on this device have results as cuDNN leaves them."""
    for op, operands in _OPERANDS.items():
        op_implementations_dict[op] = _with_layout(op_implementations_dict[op], operands, device_type)


def _with_layout(shapes: ShapeRule, operands: slice, device_type: str) -> ShapeRule:
    def rule(mode: FakeTensorMode, op: OpOverload, *args: Any, **kwargs: object) -> Tensor | tuple[Tensor | None, ...]:
        results = shapes(mode, op, *args, **kwargs)
        x, weight = args[operands][-2:]
        if not isinstance(x, FakeTensor) or x.fake_device.type != device_type or not channels_last(x, weight):
            return results
        with mode:
            if isinstance(results, Tensor):
                return results.contiguous(memory_format=_INNERMOST[results.dim()])
            return tuple(
                t if t is None or t.dim() not in _INNERMOST else t.contiguous(memory_format=_INNERMOST[t.dim()])
                for t in results
            )

    return rule
