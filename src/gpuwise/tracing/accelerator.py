"""The virtual device made into an accelerator: registered once a process, with CUDA's kernels and autocast lists."""

from __future__ import annotations

from functools import cache

import torch

from gpuwise.tracing.kernels import autocast, cpu_rnn, registered
from gpuwise.tracing.virtual_device import DEVICE, VirtualMode, make_device


@cache
def register() -> None:
    """Makes `torch.device("virt")` exist."""
    make_device()
    registered.register()
    autocast.register()
    cpu_rnn.register()


@cache
def works() -> bool:
    """Whether the backend works on this PyTorch: one linear layer, forward and backward, on fake tensors."""
    try:
        register()
        with VirtualMode(), torch.autograd.set_multithreading_enabled(False):
            layer = torch.nn.Linear(4, 2, device=DEVICE)
            layer(torch.empty(3, 4, device=DEVICE)).sum().backward()
            return layer.weight.grad is not None and layer.weight.grad.shape == (2, 4)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):  # what a changed private interface raises
        return False
