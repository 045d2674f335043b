"""The surroundings of a recording: PyTorch and libraries behave as on the target, on fake tensors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils

from gpuwise.runtime.build.adapters_recorded import only_recorded
from gpuwise.tracing.kernels import autocast, libraries
from gpuwise.tracing.kernels.detection import detecting
from gpuwise.tracing.kernels.packed import packing
from gpuwise.tracing.kernels.target import targeting
from gpuwise.tracing.patching import patched
from gpuwise.tracing.virtual_device import DEVICE, VirtualMode

DEVICES = {"accelerator": DEVICE, "pre-ampere": DEVICE, "cpu": "cpu"}


@contextmanager
def environment(target: str) -> Iterator[None]:
    """Inside, PyTorch and libraries behave as on the target, on fake tensors."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of code that runs on nothing; what matters is among the notes
        stack.enter_context(_quiet_log())
        stack.enter_context(_quiet_matmul_precision())
        stack.enter_context(only_recorded())
        stack.enter_context(VirtualMode())
        stack.enter_context(_lists_of_tensors())
        stack.enter_context(_inference_mode_without_gradients())
        stack.enter_context(_layers_in_operators())
        stack.enter_context(targeting(target))
        # On this thread alone: autograd's device threads exist only for devices registered before its first use.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(autocast.of_cuda() if target != "cpu" else nullcontext())
        stack.enter_context(detecting())
        stack.enter_context(packing())
        stack.enter_context(libraries.answering_as_on_a_gpu(DEVICES[target]))
        yield


@contextmanager
def _lists_of_tensors() -> Iterator[None]:
    """Inside, PyTorch's optimizers and its clipping of gradients take fake tensors in lists wherever they take real ones so:
    on GPUs an optimizer that a job makes itself updates all parameters together, by default."""
    with ExitStack() as stack:
        for module in (_foreach_utils, optimizer):
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(patched(module, "_foreach_supported_types", types))
        yield


@contextmanager
def _inference_mode_without_gradients() -> Iterator[None]:
    """Inside, torch.inference_mode is torch.no_grad, whose kernels are the same: in its own way, operators arrive as what
    they are composed of later, such as aten.linear."""
    mode = torch.inference_mode

    def enter(self: torch.inference_mode) -> None:
        self._gradients = torch.set_grad_enabled(not self.mode)  # type: ignore[attr-defined]

    def leave(self: torch.inference_mode, *error: object) -> None:
        self._gradients.__exit__(*error)  # type: ignore[attr-defined]

    with patched(mode, "__enter__", enter), patched(mode, "__exit__", leave):
        yield


@contextmanager
def _layers_in_operators() -> Iterator[None]:
    """Inside, layers of nn.Transformer and nn.MultiheadAttention run their operators in inference too. Without gradients
    PyTorch runs each layer as one operator, which multiplies the same and would be recorded as one without products."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Inside, PyTorch does not log an operator that fails: gpuwise reports it."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _quiet_matmul_precision() -> Iterator[None]:
    """Puts back the precision that `build` sets for the process."""
    before = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
