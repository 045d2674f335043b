"""Builds a model of which each rank keeps a part, so that no device has to hold the whole of it."""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._guards import active_fake_mode

from gpuwise.errors import message_of
from gpuwise.notes import Note
from gpuwise.notes import parallel as notes
from gpuwise.runtime.build.drawing import DrawnOn
from gpuwise.runtime.build.meta_device import made_on_meta
from gpuwise.runtime.build.movable import left_behind, other_tensors, tensors_on, unusual_tensor
from gpuwise.runtime.build.placement import moved, replace_tensors
from gpuwise.runtime.devices.random_state import random_state, set_random_state
from gpuwise.runtime.parallel.initial_weights import InitialWeights, alike, broadcast, replace_parameter
from gpuwise.runtime.parallel.seeds import share_torch_state
from gpuwise.runtime.parallel.world import World

_META, _HOST = torch.device("meta"), torch.device("cpu")


@dataclass(frozen=True)
class DeferredModel:
    """A model whose parameters are on the meta device, and their values.

    Attributes:
        model: alike on all ranks. Buffers and other tensors are on the rank's device, with rank 0's values.
        weights: gives each rank's part of the model its values.
        notes: on how it was built.
    """

    model: nn.Module
    weights: InitialWeights
    notes: tuple[Note, ...] = ()


def defers(world: World) -> bool:
    """Whether ranks keep parts of the model, and are real: a recorded rank builds fake tensors, which take no memory."""
    is_real = active_fake_mode() is None and dist.get_backend() != "fake"
    return is_real and world.mesh.devices > world.mesh.dp_replicate


def deferred_model(
    make: Callable[[], nn.Module], device: torch.device, dtype: torch.dtype | None, world: World
) -> DeferredModel | Note:
    """Builds the model in host memory on rank 0, and without values, on the meta device, on the others.

    Where a rank's model needs values to be built, all but rank 0 build it in host memory, too, and drop the values. Random
    numbers are those that the model draws when it is built on the device, and go on from there on all ranks.

    Arguments:
        make: makes the model.
        device: of this rank's part.
        dtype: of floating-point parameters and buffers; None keeps theirs.
        world: this rank's position.

    Returns the reason, the same on all ranks, where only a model built on the device works; nothing has been drawn then.
    """
    before = random_state(device)
    model: nn.Module | None = None
    problem, reason = "", ""
    for where in (_META, _HOST):
        if model is None or world.rank > 0:
            set_random_state(before, device)
            model, problem = _built(make, _HOST if world.rank == 0 else where, device)
        first_reason, reason = reason, _first_problem(problem, model)
        if not reason:
            assert model is not None
            weights = _without_values(model, device, dtype, is_first=world.rank == 0)
            share_torch_state(device)
            built_whole = [notes.whole_build(where="in host memory", reason=first_reason)] if first_reason else []
            return DeferredModel(model, weights, tuple(built_whole))
    set_random_state(before, device)
    return notes.whole_build(where="on its device", reason=reason)


def _built(make: Callable[[], nn.Module], where: torch.device, device: torch.device) -> tuple[nn.Module | None, str]:
    """The model built on a device, and why it cannot be moved to another; "" if it can."""
    before = set[int]() if where.type == device.type else set(tensors_on(where))
    try:
        if where == _META:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*which is a no-op")  # values that are loaded without memory
                model = made_on_meta(make)
        else:
            with where, DrawnOn(device) if device.type != "cpu" else nullcontext():
                model = make()
    except Exception as error:  # the user's own code may raise anything
        return None, f"{type(error).__name__}: {message_of(error)}"
    problem = unusual_tensor(model)
    if not problem and where.type != device.type:
        problem = left_behind(model, where, before)
    return model, problem


def _first_problem(problem: str, model: nn.Module | None) -> str:
    """The first rank's problem, on every rank. One is that a rank has built another model than rank 0."""
    answers: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(answers, (problem, "" if model is None else _digest(model)))
    for rank, (of_rank, digest) in enumerate(answers):
        if of_rank:
            return of_rank
        if digest != answers[0][1]:
            return f"rank {rank} has built another model than rank 0"
    return ""


def _digest(model: nn.Module) -> str:
    """Of names, shapes, dtypes and ties of all tensors."""
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    parameters = [(own, tuple(p.shape), p.dtype, p.requires_grad) for p, own in names.items()]
    others = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in other_tensors(model)]
    return hashlib.sha256(repr((parameters, others)).encode()).hexdigest()


def _without_values(model: nn.Module, device: torch.device, dtype: torch.dtype | None, *, is_first: bool) -> InitialWeights:
    """Moves the model's parameters to the meta device and all others of its tensors, with rank 0's values, to the device."""
    values = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    empty: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if parameter not in empty:
                    target = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
                    empty[parameter] = alike(parameter, torch.empty_like(parameter, device=_META, dtype=target))
                replace_parameter(module, name, empty[parameter])

    def to_device(tensor: Tensor) -> Tensor:
        return moved(tensor if is_first else tensor.detach().to(_META), device, dtype)

    replace_tensors(model, device, to_device, among=("buffers", "attributes"))
    for _, tensor in other_tensors(model):
        contiguous = tensor.detach().contiguous()
        broadcast(contiguous)
        if not is_first:
            tensor.detach().copy_(contiguous)
    return InitialWeights(model, values if is_first else {}, device)
