"""All that a program carries from step to step, taken out and put back."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpuwise.errors import InputError
from gpuwise.runtime.build.ema import AverageState, ExponentialMovingAverage
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.build.offload import HostOptimizer
from gpuwise.runtime.build.own_optimizers import NamedOptimizers
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.checkpoint import plain_weights, restore_optimizer, restore_weights
from gpuwise.runtime.checkpoint.optimizer_state import NamedState, named_state, numbered_state
from gpuwise.runtime.checkpoint.restore import OptimizerState, copy_part
from gpuwise.runtime.devices.random_state import RandomState, random_state, set_random_state


class ProgramState(TypedDict):
    """All that a program carries from step to step.

    On several ranks the tensors are this rank's; in a loaded state they may be SavedTensors, which have not been read.

    Attributes:
        model: parameters and buffers.
        optimizer: of one, or by name of those of the job's own step.
        average: None where the job keeps none.
        scaler: of the loss; {} where it is not scaled.
        random: of this rank. Absent where the state was saved under another mesh.
    """

    model: dict[str, Tensor]
    optimizer: OptimizerState | NamedState | dict[str, NamedState] | dict[str, OptimizerState]
    average: AverageState | None
    scaler: dict[str, Any]
    random: NotRequired[RandomState]


def program_state(program: Program) -> ProgramState:
    """Parameters and buffers, the optimizer's state, loss scale, averages, and where the random numbers stand.

    The tensors are those of the program, not copies.
    """
    assert program.optimizer is not None
    return {
        "model": plain_weights(program.model.state_dict()),
        "optimizer": _optimizer_state(program),
        "average": None if program.average is None else _plain(program.average.state()),
        "scaler": program.scaler.state_dict(),
        "random": random_state(program.device),
    }


@torch.no_grad()
def load_program(program: Program, state: ProgramState) -> None:
    """Puts the state back, in place. Raises InputError where it is of another model or optimizer."""
    optimizer = program.optimizer
    assert optimizer is not None
    mesh = program.strategy.mesh
    partial = mesh.pp * mesh.ep > 1  # other ranks have other stages, or other experts
    restore_weights(program.model, state["model"], partial=partial)
    if isinstance(optimizer, HostOptimizer):
        optimizer.take_loaded()
    names = program.names_of_updated()
    for part, saved in _parts(optimizer, state["optimizer"]):
        restore_optimizer(part, numbered_state(saved, part, names, partial=partial))
        _as_parameters_lie(part)
    if program.average is not None:
        if state["average"] is None:
            raise InputError("the checkpoint has no average of the parameters.", ["the Job as it was, without ema_decay"])
        restore_average(program.average, state["average"])
    program.scaler.load_state_dict(state["scaler"])
    if "random" in state:
        set_random_state(state["random"], program.device)


@torch.no_grad()
def restore_average(average: ExponentialMovingAverage, saved: AverageState) -> None:
    """Puts saved averages back, in place. Raises InputError where a parameter has none."""
    tensors = _plain(saved)["tensors"]
    if missing := [name for name in map(plain_name, average.tensors) if name not in tensors]:
        raise InputError(f"the checkpoint has no average of {missing[0]}.", ["the Job as it was", "another run folder"])
    for name, tensor in average.tensors.items():
        copy_part(tensor, tensors[plain_name(name)])
    average.updates = saved["updates"]


def _plain(state: AverageState) -> AverageState:
    return {"updates": state["updates"], "tensors": plain_weights(state["tensors"])}


def _optimizer_state(program: Program) -> NamedState | dict[str, NamedState]:
    names = program.names_of_updated()
    if isinstance(program.optimizer, NamedOptimizers):
        return {name: named_state(part, names) for name, part in program.optimizer.parts.items()}
    assert program.optimizer is not None
    return named_state(program.optimizer, names)


def _parts(optimizer: Optimizer | NamedOptimizers, saved: object) -> list[tuple[Optimizer, NamedState | OptimizerState]]:
    """Each optimizer with its saved state. Raises InputError where the job's own have other names than those saved."""
    if not isinstance(optimizer, NamedOptimizers):
        return [(optimizer, cast(NamedState, saved))]
    named = cast(dict[str, NamedState], saved)
    if set(named) != set(optimizer.parts):
        raise InputError(
            f"the checkpoint has the optimizers {', '.join(named)}; the job has {', '.join(optimizer.parts)}.",
            ["the Job as it was", "another run folder"],
        )
    return [(part, named[name]) for name, part in optimizer.parts.items()]


def _as_parameters_lie(optimizer: Optimizer) -> None:
    """Gives each state tensor of a parameter's shape the parameter's strides: fused updates walk through memory."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if type(value) is Tensor and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
