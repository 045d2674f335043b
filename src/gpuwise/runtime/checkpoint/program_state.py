"""All that a program carries from step to step, taken out and put back."""

from __future__ import annotations

import random
from typing import Any, TypedDict, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gpuwise.errors import InputError
from gpuwise.runtime.build.ema import AverageState
from gpuwise.runtime.build.offload import HostOptimizer
from gpuwise.runtime.build.own_optimizers import NamedOptimizers
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.checkpoint import plain_weights, restore_optimizer, restore_weights
from gpuwise.runtime.checkpoint.restore import OptimizerState
from gpuwise.runtime.devices import backend_of


class RandomState(TypedDict):
    """Where the random numbers of PyTorch, on the host and the device, of Python and of NumPy stand."""

    torch: Tensor
    device: Tensor | None
    python: tuple[Any, ...]
    numpy: Any


class ProgramState(TypedDict):
    """All that a program carries from step to step.

    optimizer: of one, or by name of those of the job's own step.
    average: None where the job keeps none.
    scaler: of the loss; {} where it is not scaled.
    """

    model: dict[str, Tensor]
    optimizer: OptimizerState | dict[str, OptimizerState]
    average: AverageState | None
    scaler: dict[str, Any]
    random: RandomState


def program_state(program: Program) -> ProgramState:
    """Parameters and buffers, the optimizer's state, loss scale, averages, and where the random numbers stand.

    The tensors are those of the program, not copies.
    """
    assert program.optimizer is not None
    return {
        "model": plain_weights(program.model.state_dict()),
        "optimizer": cast(OptimizerState, program.optimizer.state_dict()),
        "average": None if program.average is None else program.average.state(),
        "scaler": program.scaler.state_dict(),
        "random": random_state(program.device),
    }


@torch.no_grad()
def load_program(program: Program, state: ProgramState) -> None:
    """Puts the state back, in place. Raises InputError where it is of another model or optimizer."""
    optimizer = program.optimizer
    assert optimizer is not None
    restore_weights(program.model, state["model"])
    if isinstance(optimizer, HostOptimizer):
        optimizer.take_loaded()
    for part, saved in _parts(optimizer, state["optimizer"]):
        restore_optimizer(part, saved)
        _as_parameters_lie(part)
    if program.average is not None:
        if state["average"] is None:
            raise InputError("the checkpoint has no average of the parameters.", ["the Job as it was, without ema_decay"])
        program.average.load(state["average"])
    program.scaler.load_state_dict(state["scaler"])
    set_random_state(state["random"], program.device)


def _parts(
    optimizer: Optimizer | NamedOptimizers, saved: OptimizerState | dict[str, OptimizerState]
) -> list[tuple[Optimizer, OptimizerState]]:
    """Each optimizer with its saved state. Raises InputError where the job's own have other names than those saved."""
    if not isinstance(optimizer, NamedOptimizers):
        return [(optimizer, cast(OptimizerState, saved))]
    saved = cast(dict[str, OptimizerState], saved)
    if set(saved) != set(optimizer.parts):
        raise InputError(
            f"the checkpoint has the optimizers {', '.join(saved)}; the job has {', '.join(optimizer.parts)}.",
            ["the Job as it was", "another run folder"],
        )
    return [(part, saved[name]) for name, part in optimizer.parts.items()]


def _as_parameters_lie(optimizer: Optimizer) -> None:
    """Gives each state tensor of a parameter's shape the parameter's strides: fused updates walk through memory."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if type(value) is Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def random_state(device: torch.device) -> RandomState:
    return {
        "torch": torch.get_rng_state(),
        "device": backend_of(device).random_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }


def set_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    if state["device"] is not None:
        backend_of(device).set_random_state(state["device"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def seed_everything(seed: int) -> None:
    """What initial weights and dropout draw from, and what data transforms commonly do."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
