"""Registers the virtual device as an accelerator with CUDA's kernels and autocast lists, once a process."""

from __future__ import annotations

from functools import cache

import torch

from gpuwise.tracing.kernels import autocast, cpu_rnn, registered
from gpuwise.tracing.virtual_device import DEVICE, VirtualMode, make_device


@cache
def register() -> None:
    """Makes `torch.device("virt")` exist."""
    make_device()
    registered.register(DEVICE)
    autocast.register()
    cpu_rnn.register()


@cache
def problem() -> str | None:
    """The reason why the backend fails on this PyTorch, tested with one linear layer forward and backward; None if it works."""
    try:
        register()
        with VirtualMode(), torch.autograd.set_multithreading_enabled(False):
            layer = torch.nn.Linear(4, 2, device=DEVICE)
            layer(torch.empty(3, 4, device=DEVICE)).sum().backward()
            gradient = layer.weight.grad
    except (RuntimeError, AttributeError, TypeError) as error:  # a private interface has changed
        return f"{type(error).__name__}: {error}"
    return None if gradient is not None and gradient.shape == (2, 4) else "a layer's gradient has another shape"
