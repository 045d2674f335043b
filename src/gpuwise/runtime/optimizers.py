"""Optimizers by name. Fused where PyTorch has a fused kernel: no copy of the parameters, one launch for many tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.nn import Parameter

from gpuwise.errors import InputError
from gpuwise.strategy import OPTIMIZERS

OptimizerChoice = str | Callable[[Iterable[Parameter]], torch.optim.Optimizer]


def make_optimizer(
    choice: OptimizerChoice, parameters: Iterable[Parameter], learning_rate: float
) -> torch.optim.Optimizer:
    """The optimizer named, or made by the job's own function. Raises InputError for an unknown name."""
    if callable(choice):
        return choice(parameters)
    if choice == "sgd":
        return torch.optim.SGD(parameters, lr=learning_rate, fused=True)
    if choice == "momentum":
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, fused=True)
    if choice == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate, fused=True)
    if choice == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate, fused=True)
    if choice == "adafactor":
        return torch.optim.Adafactor(parameters, lr=learning_rate)
    raise InputError(f"unknown optimizer {choice!r}.", [f"one of: {', '.join(OPTIMIZERS)}"])
