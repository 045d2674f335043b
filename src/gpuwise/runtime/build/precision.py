"""Precision of a step: how parameters are held, what is cast on the way, how gradients are scaled."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

import torch
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.job.dependencies import require
from gpuwise.runtime.build.linears import inner_linears

_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16, "fp8": torch.bfloat16}
# What torch._scaled_mm asks of the sides of a matrix (aten/src/ATen/native/cuda/ScaledBlas.cpp).
_FP8_MULTIPLE = 16
_FP8_CAPABILITY = (8, 9)  # the first NVIDIA GPUs with fp8 units: Ada


def parameter_dtype(precision: str) -> torch.dtype | None:
    """Pure bf16 holds parameters (hence gradients and optimizer state) in bf16; other precisions as they were made."""
    return torch.bfloat16 if precision == "bf16" else None


def autocast(precision: str, device_type: str) -> AbstractContextManager[object]:
    """The autocast region of a forward pass; empty unless the precision is a mixed one."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def set_matmul_precision(precision: str) -> None:
    """fp32 products run in TF32 only when asked for (convolutions follow PyTorch's own default)."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def make_scaler(precision: str, device_type: str) -> torch.amp.GradScaler:
    """Loss scaling, which only fp16 needs; disabled it passes everything through."""
    return torch.amp.GradScaler(device_type, enabled=precision == "amp-fp16")


def with_fp8_products(model: nn.Module, device: torch.device) -> nn.Module:
    """Linear layers whose three products run on float8 numbers, by torchao: e4m3, e5m2 for gradients, one dynamic scale a
    tensor. Weights stay as they are and are cast each time; backward keeps the inputs uncast.

    The output head, adapters and layers with a side that 16 does not divide stay as they are. On a CPU the products are
    emulated: the numbers are rounded to float8 and multiplied in their own type.

    Raises MissingDependencyError without torchao, UnsupportedError where no layer is left or the GPU has no such units.
    """
    if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise UnsupportedError(f"{torch.cuda.get_device_name(device)} has no fp8 arithmetic.", ["--precision amp-bf16"])
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
