"""Makes optimizers by name and kernels, and optimizers that update during backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from importlib import import_module

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.job import repeated_blocks
from gpuwise.job.dependencies import require
from gpuwise.strategy import fused_sgd_fault, kernels_for, kernels_of, nothing_for_muon

OptimizerChoice = str | Callable[[Iterable[Parameter]], Optimizer]


def make_optimizer(
    choice: OptimizerChoice,
    parameters: Iterable[Parameter],
    learning_rate: float,
    *,
    kernels: str | None = None,
    hidden: Collection[Parameter] = (),
    scaled: bool = False,
) -> Optimizer:
    """Makes an optimizer by name or by the job's own function.

    Arguments:
        choice: name of the optimizer, or the job's function.
        parameters: the trained parameters.
        learning_rate: the learning rate.
        kernels: for-loop | foreach | fused; None takes the first of strategy.kernels_for.
        hidden: parameters updated by Muon (see hidden_matrices); AdamW updates the others.
        scaled: whether gradients are scaled for fp16.

    Raises InputError for an unknown name or unsupported kernels; JobError for a job's own fused SGD in cases where
    PyTorch's is wrong; MissingDependencyError for 8- or 4-bit state without torchao.
    """
    if callable(choice):
        if kernels is not None:
            raise InputError(
                "the job makes its own optimizer, so its kernels cannot be chosen here.",
                ["choose them in the job's own function", "name the optimizer: --optimizer adamw"],
            )
        own = choice(parameters)
        check_fused_sgd(own, scaled=scaled)
        check_shards(own)
        return own
    parameters = list(parameters)
    if kernels is None and choice in ("sgd", "momentum") and any(isinstance(p, DTensor) for p in parameters):
        kernels = "foreach"  # aten._fused_sgd_ has no sharding strategy (PyTorch 2.13)
    if kernels is None and "foreach" in kernels_for(choice) and any(p.is_complex() for p in parameters):
        kernels = "foreach"  # PyTorch's fused updates take real numbers alone
    kernels = kernels_of(choice, kernels, on_cpu=_on_cpu(parameters), in_16_bits=_in_16_bits(parameters), scaled=scaled)
    if choice == "adafactor":
        return torch.optim.Adafactor(parameters, lr=learning_rate, foreach=kernels == "foreach")
    if choice == "muon":
        return _muon(parameters, {id(p) for p in hidden}, learning_rate)
    if choice in ("adamw-8bit", "adamw-4bit"):
        require("torchao", purpose=f"hold the state of {choice}")
        low_bit = import_module("torchao.optim")
        make = low_bit.AdamW8bit if choice == "adamw-8bit" else low_bit.AdamW4bit
        optimizer: Optimizer = make(parameters, lr=learning_rate)
        return optimizer
    foreach, fused = kernels == "foreach", kernels == "fused"
    if choice in ("sgd", "momentum"):
        momentum = 0.9 if choice == "momentum" else 0.0
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum, foreach=foreach, fused=fused)
    adam = torch.optim.Adam if choice == "adam" else torch.optim.AdamW
    return adam(parameters, lr=learning_rate, foreach=foreach, fused=fused)


def check_fused_sgd(optimizer: Optimizer, *, scaled: bool) -> None:
    """Raises JobError for a job's own fused SGD in cases where PyTorch's is wrong."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        parameters = group["params"]
        fault = fused_sgd_fault(
            on_cpu=_on_cpu(parameters), in_16_bits=_in_16_bits(parameters), scaled=scaled and group["momentum"] != 0
        )
        if group["fused"] and fault:
            raise JobError(
                f"the job makes torch.optim.SGD(fused=True). {fault}.",
                ["leave out fused=True in the job", "--precision amp-bf16 or fp32"],
            )


def check_shards(optimizer: Optimizer) -> None:
    """Raises UnsupportedError for a job's own optimizer that does not update shards of parameters rightly."""
    for group in optimizer.param_groups:
        fused_sgd = isinstance(optimizer, torch.optim.SGD) and group["fused"]
        whole = fused_sgd or isinstance(optimizer, torch.optim.Muon | torch.optim.Adafactor)
        if whole and any(isinstance(p, DTensor) for p in group["params"]):
            kind = f"{type(optimizer).__name__}{'(fused=True)' if fused_sgd else ''}"
            raise UnsupportedError(
                f"the job makes torch.optim.{kind}, which does not update sharded parameters.",
                ["torch.optim.AdamW in the job", "--mesh dp=N, which keeps a copy on each device"],
            )


def _on_cpu(parameters: Iterable[Parameter]) -> bool:
    return any(p.device.type == "cpu" for p in parameters)


def _in_16_bits(parameters: Iterable[Parameter]) -> bool:
    return any(p.is_floating_point() and p.element_size() == 2 for p in parameters)


def hidden_matrices(model: nn.Module) -> list[Parameter]:
    """The parameters that Muon updates: matrices of the repeated blocks, without embeddings, heads, norms and biases.

    Source: Keller Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
    Raises UnsupportedError for a model without such matrices.
    """
    matrices = {p: None for block in repeated_blocks(model) for p in block.parameters() if p.dim() == 2 and p.requires_grad}
    if not matrices:
        raise nothing_for_muon(type(model).__name__)
    return list(matrices)


def _muon(parameters: Sequence[Parameter], hidden: set[int], learning_rate: float) -> Optimizer:
    matrices = [p for p in parameters if id(p) in hidden]
    others = [p for p in parameters if id(p) not in hidden]
    parts: list[Optimizer] = []
    if matrices:
        parts.append(torch.optim.Muon(matrices, lr=learning_rate))
    if others:
        parts.append(torch.optim.AdamW(others, lr=learning_rate, fused=True))
    return parts[0] if len(parts) == 1 else CombinedOptimizer(parts)


class CombinedOptimizer(Optimizer):
    """Several optimizers behind the interface of one, with their parameter groups and a common state.

    Attributes:
        on_gradient: called with a parameter when its gradient is ready, in subclasses that use and free it at once
            (InBackward and HostOptimizer).
    """

    on_gradient: Callable[[torch.Tensor], None] | None = None

    def __init__(self, parts: Sequence[Optimizer]):
        self.parts = list(parts)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state


class InBackward(CombinedOptimizer):
    """Updates each parameter as soon as backward has its gradient, and frees the gradient at once. `step` does nothing.

    Arguments:
        parameters: the trained parameters.
        make: makes the optimizer of a list of parameters; called for one parameter at a time.
    """

    def __init__(self, parameters: Iterable[Parameter], make: Callable[[list[Parameter]], Optimizer]):
        parameters = list(parameters)
        super().__init__([make([p]) for p in parameters])
        for parameter, part in zip(parameters, self.parts, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(self._update, part))

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        pass

    def _update(self, part: Optimizer, parameter: torch.Tensor) -> None:
        if self.on_gradient is not None:
            self.on_gradient(parameter)
        part.step()
        parameter.grad = None
