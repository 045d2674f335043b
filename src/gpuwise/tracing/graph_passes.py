"""Backward passes whose own graph is kept, to be differentiated again (create_graph=True, torch.func)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gpuwise.tracing.patching import patched

_CREATE_GRAPH = 2  # its position behind the outputs, in what torch.autograd.backward and torch.autograd.grad call


class GraphPasses:
    """Whether the backward pass that runs keeps its graph."""

    def __init__(self) -> None:
        self._kept: list[bool] = []  # of the passes that run, each inside the one before

    @property
    def running(self) -> bool:
        return bool(self._kept) and self._kept[-1]

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Inside, backward passes are noticed."""
        run = torch.autograd._engine_run_backward

        def noticed(outputs: Sequence[torch.Tensor], *args: object, **kwargs: object) -> object:
            self._kept.append(bool(args[_CREATE_GRAPH]))
            try:
                return run(outputs, *args, **kwargs)
            finally:
                self._kept.pop()

        with patched(torch.autograd, "_engine_run_backward", noticed):
            yield
