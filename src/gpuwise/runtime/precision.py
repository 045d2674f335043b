"""Precision of a step: how parameters are held, what is cast on the way, how gradients are scaled."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


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
