"""Precision of a step: the dtype of parameters, autocast, and gradient scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

import torch
import torch.distributed as dist
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.job.dependencies import require
from gpuwise.runtime.build.linears import inner_linears
from gpuwise.runtime.devices import backend_of
from gpuwise.strategy import Strategy

_PARAMETERS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16, "fp8": torch.bfloat16}
_FIRST_SCALE = 2.0**15  # of a loss in fp16, whose gradient is the scale itself: PyTorch's first one, 65,536, is no fp16 number
# Divisor of matrix sides required by torch._scaled_mm (aten/src/ATen/native/cuda/ScaledBlas.cpp).
_FP8_MULTIPLE = 16


def parameter_dtype(precision: str) -> torch.dtype | None:
    """The dtype of parameters and gradients in pure bf16 and fp16; None keeps the model's own."""
    return _PARAMETERS.get(precision)


def autocast(precision: str, device_type: str) -> AbstractContextManager[object]:
    """The autocast context of a forward pass; a null context unless the precision is mixed."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def set_matmul_precision(precision: str) -> None:
    """Enables TF32 for fp32 products only if the precision is tf32 (convolutions follow PyTorch's own default)."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def make_scaler(precision: str, device_type: str, *, agrees: bool = False) -> torch.amp.GradScaler:
    """The loss scaler; disabled, and thus without effect, for all precisions except fp16.

    Arguments:
        precision: precision of the step.
        device_type: type of the device.
        agrees: whether several ranks skip a step together.
    """
    kind = AgreedGradScaler if agrees else torch.amp.GradScaler
    first = _FIRST_SCALE if precision == "fp16" else 2.0**16  # PyTorch's own
    return kind(device_type, init_scale=first, enabled=Strategy(precision).scales_loss)


class AgreedGradScaler(torch.amp.GradScaler):
    """A loss scaler by which all ranks skip a step, and lower the scale, if gradients overflowed on any of them."""

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        overflows = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        overflow = overflows.setdefault(found_inf.device, found_inf)
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        return overflows


def with_fp8_products(model: nn.Module, device: torch.device) -> nn.Module:
    """Replaces linear layers by torchao's float8 layers, whose three products run in float8.

    Values are e4m3, gradients e5m2, with one dynamic scale per tensor. Weights keep their dtype and are cast each time;
    backward keeps the uncast inputs. The output head, adapters and layers with a side not divisible by 16 are left
    unchanged. On a CPU the products are emulated: values are rounded to float8 and multiplied in their own dtype.

    Raises MissingDependencyError without torchao, UnsupportedError when no layer qualifies or the device has no fp8 units.
    """
    if lacking := backend_of(device).why_no_fp8():
        raise UnsupportedError(f"{lacking}.", ["--precision amp-bf16"])
    require("torchao", purpose="train in fp8")
    float8 = import_module("torchao.float8")
    names = {name for name in inner_linears(model) if "lora_" not in name and _divisible(model.get_submodule(name))}
    if not names:
        raise UnsupportedError(
            f"{type(model).__name__} has no linear layer for fp8: beside its output, none has sides that "
            f"{_FP8_MULTIPLE} divides.",
            ["--precision amp-bf16"],
        )
    config = float8.Float8LinearConfig(emulate=device.type == "cpu")
    converted: nn.Module = float8.convert_to_float8_training(
        model, module_filter_fn=lambda module, name: name in names, config=config
    )
    return converted


def _divisible(layer: nn.Module) -> bool:
    assert isinstance(layer, nn.Linear)
    return layer.in_features % _FP8_MULTIPLE == 0 and layer.out_features % _FP8_MULTIPLE == 0
