"""Updates of Keras that PyTorch has no optimizer for, or one that rounds otherwise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

_UPDATES = "updates"  # key of a parameter group: how many updates it has had


def adam_of_keras(parameters: Iterable[Parameter], *, epsilon: float, **settings: object) -> Optimizer:
    """PyTorch's AdamW with the epsilon where Keras has it: outside the bias correction of the second moment.

    The paper calls it epsilon hat. Keras: lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon); PyTorch divides
    sqrt(v) by sqrt(1 - b2^t) before it adds its epsilon, so that its own changes with t.

    Arguments:
        epsilon: Keras's.
        settings: further arguments of torch.optim.AdamW.
    """
    optimizer = torch.optim.AdamW(parameters, eps=epsilon, **settings)  # type: ignore[arg-type]
    for group in optimizer.param_groups:
        group[_UPDATES] = 0

    def correct(of: Optimizer, *_: object) -> None:
        for group in of.param_groups:
            group[_UPDATES] += 1
            group["eps"] = epsilon / math.sqrt(1 - group["betas"][1] ** group[_UPDATES])

    optimizer.register_step_pre_hook(correct)
    return optimizer


class _Foreach(Optimizer, ABC):
    """An optimizer that updates all parameters of a group at once, after a decay of the weights."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            if group["weight_decay"]:
                torch._foreach_mul_(parameters, 1 - group["weight_decay"] * group["lr"])
            self._update(group, parameters, [cast(Tensor, p.grad) for p in parameters])

    @abstractmethod
    def _update(self, group: dict[str, float], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Changes the parameters by their gradients, with the settings of their group."""

    def _state(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        """A state of each parameter, zero at first."""
        return [self.state[p].setdefault(name, torch.zeros_like(p)) for p in parameters]


class SGDOfKeras(_Foreach):
    """Keras's SGD: the velocity holds the learning rate of each step that entered it, and weights decay by themselves.

    At a constant learning rate without decay it is torch.optim.SGD.
    """

    def __init__(
        self, parameters: Iterable[Parameter], *, lr: float, momentum: float, nesterov: bool, weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay})

    def _update(self, group: dict[str, float], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if not group["momentum"]:
            torch._foreach_add_(parameters, gradients, alpha=-group["lr"])
            return
        velocities = self._state("velocity", parameters)
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, gradients, alpha=-group["lr"])
        if group["nesterov"]:
            torch._foreach_add_(parameters, gradients, alpha=-group["lr"])
            torch._foreach_add_(parameters, velocities, alpha=group["momentum"])
        else:
            torch._foreach_add_(parameters, velocities)


class RMSpropOfKeras(_Foreach):
    """Keras's RMSprop, which adds its epsilon below the root; PyTorch's adds it to the root."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        *,
        lr: float,
        rho: float,
        momentum: float,
        epsilon: float,
        centered: bool,
        weight_decay: float,
    ) -> None:
        settings = {"rho": rho, "momentum": momentum, "epsilon": epsilon, "centered": centered}
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, **settings})

    def _update(self, group: dict[str, float], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        rho = group["rho"]
        velocities = self._state("velocity", parameters)
        torch._foreach_mul_(velocities, rho)
        torch._foreach_addcmul_(velocities, gradients, gradients, value=1 - rho)
        roots = torch._foreach_add(velocities, group["epsilon"])
        if group["centered"]:
            means = self._state("mean", parameters)
            torch._foreach_mul_(means, rho)
            torch._foreach_add_(means, gradients, alpha=1 - rho)
            torch._foreach_addcmul_(roots, means, means, value=-1)
        torch._foreach_sqrt_(roots)
        if not group["momentum"]:
            torch._foreach_addcdiv_(parameters, gradients, roots, value=-group["lr"])
            return
        momenta = self._state("momentum", parameters)
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_addcdiv_(momenta, gradients, roots, value=group["lr"])
        torch._foreach_add_(parameters, momenta, alpha=-1)
