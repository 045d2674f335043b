"""ModuleTracker: tracks the module of the model that is running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from gpuwise.trace.header import UpdatedParameter
from gpuwise.tracing.patching import patched


class ModuleTracker:
    """The modules of a model by their paths, and the one that runs now.

    Attributes:
        index_of: the number of each path that was seen, in the order they were seen; the model itself, "", is 0.
        parameters: by the id of each parameter, its position in the model's order and the path of its module.
        updated: of one of several ranks, what its optimizer updates; set by the caller.
    """

    def __init__(self) -> None:
        self.index_of: dict[str, int] = {"": 0}
        self.parameters: dict[int, tuple[int, str]] = {}
        self.updated: tuple[UpdatedParameter, ...] = ()
        self._paths: dict[int, str] = {}
        self._local = threading.local()
        self._module_of_node: dict[int, int] = {}  # by the sequence number of an autograd node

    def watch(self, model: nn.Module) -> None:
        """Registers the model's modules and parameters for tracking."""
        self._paths = {id(module): name for name, module in model.named_modules()}
        names = [(parameter, name.rpartition(".")[0]) for name, parameter in model.named_parameters()]
        self.parameters = {id(parameter): (order, path) for order, (parameter, path) in enumerate(names)}

    def index(self, path: str) -> int:
        """The number of a path, a new one where it was not seen before."""
        return self.index_of.setdefault(path, len(self.index_of))

    def running(self) -> int | None:
        """The module whose forward runs on this thread; None outside all."""
        stack = self._stack()
        return stack[-1] if stack else None

    def of_forward(self) -> int:
        """The module that runs in forward, remembered for the autograd node that was made last."""
        module = self.running() or 0
        self._module_of_node[torch.autograd._get_sequence_nr() - 1] = module
        return module

    def of_backward(self, node: torch.autograd.graph.Node) -> int:
        """The module that runs inside backward (a recomputed forward), else the one whose forward made the node."""
        running = self.running()
        return self._module_of_node.get(node._sequence_nr(), 0) if running is None else running

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """A context that tracks calls of modules."""
        call_module = nn.Module.__call__

        def call(module: nn.Module, *args: object, **kwargs: object) -> object:
            # Not a hook: a hook would hold inputs and outputs longer than the step itself does.
            path = self._paths.get(id(module))
            if path is None:
                return call_module(module, *args, **kwargs)
            stack = self._stack()
            stack.append(self.index(path))
            try:
                return call_module(module, *args, **kwargs)
            finally:
                stack.pop()

        with patched(nn.Module, "__call__", call):
            yield

    def _stack(self) -> list[int]:
        if not hasattr(self._local, "modules"):
            self._local.modules = []
        return self._local.modules
