"""Calls of modules, intercepted before their hooks run (those of FSDP and tensor parallelism included)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from gpuwise.runtime.parallel.stages_absent import Tree

_HANDLER = "_stage_call"


def intercept(module: nn.Module, handler: Callable[..., object]) -> None:
    """Lets `handler(module, original, args, kwargs)` answer calls of the module; `original(*args, **kwargs)` runs it."""
    if _HANDLER not in vars(module):
        module.__class__ = _intercepted(type(module))
    vars(module)[_HANDLER] = handler


_INTERCEPTED: dict[type, type[nn.Module]] = {}


def _intercepted(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass under the same name, one for each class, so that modules of one class remain of one class."""
    if kind not in _INTERCEPTED:

        def call(self: nn.Module, *args: Tree, **kwargs: Tree) -> object:
            return vars(self)[_HANDLER](self, partial(kind.__call__, self), args, kwargs)

        names = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _INTERCEPTED[kind] = type(kind.__name__, (kind,), names)
    return _INTERCEPTED[kind]
