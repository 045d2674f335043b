"""torchao's optimizers with 8- and 4-bit state under the recorder.

torchao compiles the update of each parameter. Nothing is compiled while recording: the update is recorded as the one
kernel that Inductor makes of it on a GPU, where values that stay inside a kernel (the fp32 copies, the scaled state) have
no memory. Inductor's C++ backend keeps two fp32 buffers of the parameter's size and the two new scales (its generated
code for torchao 0.18's `single_param_adam`, PyTorch 2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from gpuwise.tracing.patching import patched

_MODULE = "torchao.optim.adam"
_library = torch.library.Library("gpuwise", "DEF")
_library.define("_fused_low_bit_adamw_(Tensor(a!) parameter, Tensor gradient, Tensor(b!)[] state) -> ()")
_library.impl("_fused_low_bit_adamw_", lambda parameter, gradient, state: None, "Meta")


@contextmanager
def low_bit_updates() -> Iterator[None]:
    """While entered, an update of torchao's Adam is one operator; where torchao is not loaded, nothing changes."""
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return
    with _disable_current_modes():  # torchao keeps what these give for the whole process: it must be real
        for bits in ("8bit", "4bit"):
            subclass = import_module(f"torchao.optim.subclass_{bits}")
            subclass.get_qmap_signed(), subclass.get_qmap_unsigned()
    with patched(module, "single_param_adam", _update), torch.compiler.set_stance("force_eager"):
        yield


def _update(parameter: Tensor, gradient: Tensor, step: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *rest: object) -> None:
    """In place of torchao.optim.adam.single_param_adam. Of sharded parameters it updates what this rank holds."""
    parameter, gradient, exp_avg, exp_avg_sq = map(_local, (parameter, gradient, exp_avg, exp_avg_sq))
    state = [*inner_tensors(exp_avg), *inner_tensors(exp_avg_sq)]
    kept: list[Tensor] = []
    if parameter.device.type == "cpu":
        for tensor in (exp_avg, exp_avg_sq):
            if is_traceable_wrapper_subclass(tensor):
                kept += [torch.empty_like(parameter, dtype=torch.float32), torch.empty_like(tensor.scale)]
    torch.ops.gpuwise._fused_low_bit_adamw_(parameter, gradient, state)
    del kept


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The plain tensors that a wrapper such as torchao's OptimState8bit or a DTensor holds; a plain tensor holds itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    attributes = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [inner for value in attributes if isinstance(value, Tensor) for inner in inner_tensors(value)]
