"""A loaded state put into the model and the optimizer that go on with it, exactly as they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuwise.errors import InputError
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.checkpoint.pieces import SavedTensor
from gpuwise.runtime.parallel.regions import Region, is_dtensor, local_of, shard_of


class OptimizerState(TypedDict):
    """What an optimizer's `state_dict` gives: the state of each parameter by its number, and the groups that number them."""

    state: dict[int, dict[str, object]]
    param_groups: list[ParameterGroup]


class ParameterGroup(TypedDict):
    """The part of a group that is read here: numbers of its parameters."""

    params: list[int]


@torch.no_grad()
def restore_weights(
    model: nn.Module, weights: Mapping[str, Tensor] | Mapping[str, Tensor | SavedTensor], *, partial: bool = False
) -> None:
    """Copies weights into a model: its tensors stay the ones they are, in their place and layout.

    Arguments:
        weights: a state dict, with the names of the model unwrapped (see export.plain_weights).
        partial: whether the model may lack some of them: other ranks have them.

    Raises InputError when names, shapes or dtypes differ: it is the state of another model. Nothing was copied then.
    """
    live = {plain_name(name): tensor for name, tensor in model.state_dict(keep_vars=True).items()}
    _same("parameter", set(live), set(weights) & set(live) if partial else set(weights))
    for name, tensor in live.items():
        saved, expected = _kind(weights[name]), _kind(tensor)
        if saved != expected:
            raise InputError(
                f"the checkpoint is of another model: {name} is {saved}, here {expected}.",
                ["train the job that was saved", "another run folder"],
            )
    for name, tensor in live.items():
        if isinstance(tensor, Tensor):
            copy_part(tensor, weights[name])


def copy_part(tensor: Tensor, saved: Tensor | SavedTensor) -> None:
    """Copies what this rank has of a tensor from a whole one of the same shape."""
    region = shard_of(tensor).region if is_dtensor(tensor) else Region.whole(tensor.shape)
    if isinstance(saved, SavedTensor):
        values = saved.region(region)
    else:
        values = saved[region.slices(Region.whole(saved.shape))] if is_dtensor(tensor) else saved
    local_of(tensor).copy_(values)


def restore_optimizer(optimizer: Optimizer, saved: OptimizerState) -> None:
    """`load_state_dict`, but the state keeps the dtype it was saved in: PyTorch turns it into that of the parameters.

    Raises InputError for the state of another optimizer.
    """
    try:
        optimizer.load_state_dict(dict(saved))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"the checkpoint is of another optimizer: {error}.", ["the optimizer that was saved", "another run folder"]
        ) from error
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            live = optimizer.state[parameter].get(name)  # a master weight is the parameter itself
            if isinstance(live, Tensor) and isinstance(value, Tensor) and live.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(live.device)


def _same(what: str, live: set[str], saved: set[str]) -> None:
    if live != saved:
        missing, extra = sorted(live - saved), sorted(saved - live)
        differences = [f"it lacks {missing[0]}" + _more(missing)] if missing else []
        differences += [f"its {extra[0]}{_more(extra)} is not here"] if extra else []
        raise InputError(
            f"the checkpoint is of another model: {' and '.join(differences)}.",
            ["train the job that was saved", "another run folder"],
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _kind(value: object) -> str:
    if not isinstance(value, Tensor | SavedTensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
