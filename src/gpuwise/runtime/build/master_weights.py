"""Training in fp16: the model computes in half precision, and the optimizer updates fp32 copies of its parameters.

An fp16 number has 11 bits of mantissa, so that most updates of a weight would be rounded away. The update therefore adds to
fp32 master weights, from which the model's are rounded after each step; gradients are unscaled in fp32. The scheme is that of
Micikevicius et al., "Mixed precision training" (2018), which apex called O2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gpuwise.errors import InputError
from gpuwise.runtime.build.offload import HostOptimizer
from gpuwise.runtime.build.optimizers import CombinedOptimizer

_MASTER = "master"  # key of the master weight in the state of a parameter


class MasterWeights(dict[Parameter, Parameter]):
    """Maps each trainable parameter of a model to its fp32 copy, which the optimizer updates."""

    def __init__(self, parameters: Iterable[Parameter]):
        super().__init__({p: Parameter(p.detach().float()) for p in parameters if p.requires_grad})


class MasterOptimizer(CombinedOptimizer):
    """An optimizer of master weights. Its state dict has them beside the rest of each parameter's state.

    Arguments:
        masters: the master weights, by their parameters.
        make: makes the optimizer of a list of master weights.
    """

    def __init__(self, masters: MasterWeights, make: Callable[[list[Parameter]], Optimizer]):
        self.copies: Mapping[Parameter, Parameter] = masters
        super().__init__([make(list(masters.values()))])

    @torch.no_grad()
    def arrive(self) -> None:
        """Turns each gradient of the model into one of its master weight, in fp32; the model's is freed."""
        for parameter, master in self.copies.items():
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.arrive()
        super().step()
        torch._foreach_copy_(list(self.copies), list(self.copies.values()))

    def state_dict(self) -> dict[str, object]:
        saved = super().state_dict()
        state = {number: {**saved["state"].get(number, {}), _MASTER: master} for number, master in self._numbered().items()}
        return {**saved, "state": {**saved["state"], **state}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Raises InputError for the state of an optimizer without master weights."""
        masters, saved = self._numbered(), cast(dict[int, dict[str, object]], state_dict["state"])
        if missing := [number for number in masters if _MASTER not in saved.get(number, {})]:
            raise InputError(
                f"the checkpoint has no fp32 weights of {len(missing)} parameters.",
                ["the precision that was saved", "another run folder"],
            )
        for number, master in masters.items():
            master.copy_(cast(Tensor, saved[number][_MASTER]))
        rest = {number: {name: value for name, value in values.items() if name != _MASTER} for number, values in saved.items()}
        super().load_state_dict({**state_dict, "state": {number: values for number, values in rest.items() if values}})

    def _numbered(self) -> dict[int, Tensor]:
        """The master weights by their numbers in a state dict, which counts over the groups."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return {number: parameter.detach() for number, parameter in enumerate(parameters)}


def copies_of(optimizer: object) -> Mapping[Parameter, Parameter]:
    """What an optimizer updates in place of parameters: copies in host memory, or master weights; of others nothing."""
    return optimizer.copies if isinstance(optimizer, HostOptimizer | MasterOptimizer) else {}


def bring_gradients(optimizer: object) -> None:
    """Brings gradients to where the optimizer updates copies: waits for those in flight to the host, or widens them."""
    if isinstance(optimizer, HostOptimizer | MasterOptimizer):
        optimizer.arrive()
