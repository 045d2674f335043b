"""Refuses what a device lacks before anything is built on it."""

from __future__ import annotations

import torch

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job, checked_batch
from gpuwise.job.batches import named_tensors
from gpuwise.runtime.devices import backend_of
from gpuwise.strategy import Strategy


def check_device(job: Job, strategy: Strategy, device: torch.device) -> None:
    """Raises UnsupportedError for a precision, a compiled step or a batch that the device cannot compute."""
    backend = backend_of(device)
    if strategy.precision in ("bf16", "amp-bf16") and (lacking := backend.why_no_bf16()):
        raise UnsupportedError(f"{lacking}.", ["--precision amp-fp16", "--precision fp32"])
    if strategy.compile and (lacking := backend.why_no_compile()):
        raise UnsupportedError(f"{lacking}.", ["leave out --compile"])
    if lacking := backend.why_no_float64():
        doubles = [name for name, tensor in named_tensors(checked_batch(job, 1)) if tensor.dtype == torch.float64]
        if doubles:
            raise UnsupportedError(f"{doubles[0]} is float64: {lacking}.", ["tensors of float32 in the Job, and in its data"])


def explained_by_device(error: Exception, device: torch.device) -> UnsupportedError | None:
    """The error of a model that makes tensors of float64 on a device without them; None for any other error."""
    if not isinstance(error, TypeError | RuntimeError) or "float64" not in str(error):
        return None
    lacking = backend_of(device).why_no_float64()
    return UnsupportedError(f"the model has tensors of float64: {lacking}.", ["a model in float32"]) if lacking else None
