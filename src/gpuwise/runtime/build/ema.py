"""An exponential moving average of the parameters, kept beside those that are trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import torch
from torch import Tensor, nn


class AverageState(TypedDict):
    """What is saved of the averages: after how many updates, and their values by the names of the parameters."""

    updates: int
    tensors: dict[str, Tensor]


class ExponentialMovingAverage:
    """Averages of the trained parameters of a model, on its device and in its types.

    After step n the average moves by 1 - min(decay, (1 + n) / (10 + n)) towards the parameters: the early bound, as
    TensorFlow's class of this name has it, lets it follow while they still move far.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Once after each optimizer step."""
        self.updates += 1
        weight = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self.tensors.values()), list(self._parameters.values()), weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the model has the averages for its parameters."""
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
