"""Builds models without memory."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.utils._device import DeviceContext, _device_constructors

from gpuwise.runtime.parallel.torch_types import Argument, Arguments, Keywords


def made_on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """The model of `make`, whose tensors have no memory.

    Modules that are imported meanwhile keep the values of theirs: constants, and default arguments of functions.
    """
    with _OnMeta(torch.device("meta")):
        return make()


class _OnMeta(DeviceContext):
    """As torch.device("meta"), but for modules that are imported."""

    def __torch_function__(
        self, func: Callable[..., Argument], types: Argument, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Argument:
        if func in _device_constructors() and _imports():
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _imports() -> bool:
    """Whether the code of a module runs inside `made_on_meta`, rather than that of functions alone."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not made_on_meta.__code__:
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
