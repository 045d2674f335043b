"""The layout convolutions compute in on CUDA, which fake tensors know for PyTorch's own devices alone.

cuDNN takes channels-last where input or filter lie so, depthwise ones included, and first copies those that do not
(cudnn_conv_suggest_memory_format in aten/src/ATen/native/ConvUtils.h; Convolution.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
_OPERANDS = {aten.convolution.default: slice(0, 2), aten.convolution_backward.default: slice(0, 3)}


def channels_last(x: Tensor, weight: Tensor) -> bool:
    """Whether cuDNN computes a convolution of these in channels-last."""
    if x.dim() != 4 or torch.float64 in (x.dtype, weight.dtype):
        return False
    return torch.channels_last in (suggest_memory_format(x), suggest_memory_format(weight))


def copied(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """Operands of a call that are copied to channels-last before it computes; none where it computes contiguously, or is
    no convolution."""
    if func not in _OPERANDS:
        return []
    operands = args[_OPERANDS[func]]
    if not channels_last(*operands[-2:]):
        return []
    return [t for t in operands if not t.is_contiguous(memory_format=torch.channels_last)]


def register(device_type: str) -> None:
    """Lets convolutions of fake tensors on this device have results as cuDNN leaves them."""
    for func, operands in _OPERANDS.items():
        op_implementations_dict[func] = _with_layout(op_implementations_dict[func], operands, device_type)


def _with_layout(shapes: Callable[..., Any], operands: slice, device_type: str) -> Callable[..., Any]:
    def rule(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        results = shapes(mode, func, *args, **kwargs)
        x, weight = args[operands][-2:]
        if not isinstance(x, FakeTensor) or x.fake_device.type != device_type or not channels_last(x, weight):
            return results
        with mode:
            if isinstance(results, Tensor):
                return results.contiguous(memory_format=torch.channels_last)
            return tuple(t if t is None or t.dim() != 4 else t.contiguous(memory_format=torch.channels_last) for t in results)

    return rule
