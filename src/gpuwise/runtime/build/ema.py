"""An exponential moving average of the trained parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import torch
from torch import Tensor, nn

from gpuwise.runtime.parallel.gradients import local


class AverageState(TypedDict):
    """The saved state of the averages.

    Attributes:
        updates: updates so far.
        tensors: averages by parameter name.
    """

    updates: int
    tensors: dict[str, Tensor]


class ExponentialMovingAverage:
    """Averages of a model's trained parameters, on their device and in their dtypes.

    After step n the average moves by 1 - min(decay, (1 + n) / (10 + n)) towards the parameters. The bound, as in
    TensorFlow's class of this name, lets the average follow the large early changes.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}
        # Of shards, the parts that this rank holds: an average is taken number by number.
        self._local_tensors = [local(tensor) for tensor in self.tensors.values()]

    @torch.no_grad()
    def update(self) -> None:
        """Updates the averages; call it once after each optimizer step."""
        self.updates += 1
        weight = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._local_tensors, [local(p) for p in self._parameters.values()], weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context in which the averages replace the model's parameters."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            own = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(own)

    def state(self) -> AverageState:
        return {"updates": self.updates, "tensors": self.tensors}

    @torch.no_grad()
    def load(self, state: AverageState) -> None:
        self.updates = state["updates"]
        for name, tensor in self.tensors.items():
            tensor.copy_(state["tensors"][name])
