"""An optimizer's state by the names of parameters, which are the same on every rank and under every mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpuwise.errors import InputError
from gpuwise.runtime.checkpoint.pieces import SavedTensor
from gpuwise.runtime.checkpoint.restore import OptimizerState
from gpuwise.runtime.parallel.regions import is_dtensor, local_of, shard_of


class NamedState(TypedDict):
    """What an optimizer's `state_dict` gives, with names in place of numbers.

    Attributes:
        state: the state of each parameter by its name, as get_optimizer_state_dict of torch.distributed.checkpoint has it.
        groups: settings and names of the parameters ("params") of each group, by the name of its first parameter.
        rest: what else the optimizer saves.
    """

    state: dict[str, dict[str, object]]
    groups: dict[str, dict[str, object]]
    rest: NotRequired[dict[str, object]]


def named_state(optimizer: Optimizer, names: Mapping[int, str]) -> NamedState:
    """The state of an optimizer; its tensors are the optimizer's own.

    Arguments:
        names: of parameters, by id; a parameter that is not among them is called by its number.
    """
    saved = optimizer.state_dict()
    of = dict(zip(_numbers(saved["param_groups"]), _names(optimizer, names), strict=True))
    state = {of[number]: values for number, values in saved["state"].items() if number in of}
    groups: dict[str, dict[str, object]] = {}
    for number, group in enumerate(saved["param_groups"]):
        parameters = [of[parameter] for parameter in group["params"]]
        groups[parameters[0] if parameters else f"#group {number}"] = {**group, "params": parameters}
    result: NamedState = {"state": state, "groups": groups}
    rest = {key: value for key, value in saved.items() if key not in ("state", "param_groups")}
    others = {key: value for key, value in saved["state"].items() if key not in of}
    if rest or others:
        result["rest"] = {"state": others, **rest}
    return result


def numbered_state(
    saved: NamedState | OptimizerState, optimizer: Optimizer, names: Mapping[int, str], *, partial: bool = False
) -> OptimizerState:
    """What the optimizer's `load_state_dict` takes: of each tensor the part that this rank has of its parameter.

    Arguments:
        saved: by name, or by number as version 1 of the format has it.
        optimizer: the optimizer that goes on.
        names: as in `named_state`.
        partial: whether the optimizer may lack parameters that were saved: other ranks have them.

    Raises InputError for the state of another optimizer.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if "param_groups" in saved:
        return _of_numbers(cast(OptimizerState, saved), parameters)
    live = list(_names(optimizer, names))
    group_of = {name: group for group in saved["groups"].values() for name in cast(list[str], group["params"])}
    missing, extra = [name for name in live if name not in group_of], set(group_of) - set(live)
    if missing or (extra and not partial):
        what = f"it lacks the state of {missing[0]}" if missing else f"its state of {min(extra)} is not here"
        raise InputError(
            f"the checkpoint is of another optimizer: {what}.", ["the optimizer that was saved", "another run folder"]
        )
    rest = dict(saved.get("rest", {}))
    state = dict(cast(dict[object, object], rest.pop("state", {})))
    for number, (name, parameter) in enumerate(zip(live, parameters, strict=True)):
        if name in saved["state"]:
            state[number] = _part_of(saved["state"][name], parameter)
    groups, number = [], 0
    for group in optimizer.param_groups:
        count = len(group["params"])
        values = group_of[live[number]] if count else {}
        settings = {key: _part_of(value, None) for key, value in values.items() if key not in ("params", "param_names")}
        if settings:
            _check_kind(settings, _settings(group))
        settings |= {key: group[key] for key in ("param_names",) if key in group}
        groups.append({**(settings or _settings(group)), "params": list(range(number, number + count))})
        number += count
    return cast(OptimizerState, {**rest, "state": state, "param_groups": groups})


def _check_kind(saved: Mapping[str, object], live: Mapping[str, object]) -> None:
    """Raises InputError for settings of another kind of optimizer: each has some that the other lacks. Versions of PyTorch only
    add settings, and schedules only what they begin from."""
    only_saved, only_live = saved.keys() - live.keys() - {"initial_lr"}, live.keys() - saved.keys() - {"param_names"}
    if only_saved and only_live:
        raise InputError(
            f"the checkpoint is of another optimizer: it has {min(only_saved)}, and none of {min(only_live)}.",
            ["the optimizer that was saved", "another run folder"],
        )


def _of_numbers(saved: OptimizerState, parameters: Sequence[Tensor]) -> OptimizerState:
    numbers = list(_numbers(saved["param_groups"]))
    if not any(isinstance(value, SavedTensor) for values in saved["state"].values() for value in values.values()):
        return saved
    if len(numbers) != len(parameters):
        raise InputError(
            "the checkpoint was written by an earlier gpuwise, which numbered an optimizer's parameters: ranks with a part of "
            "the model cannot tell them apart.",
            ["continue on one device, or with every rank's parameters in one stage (pp=1), and save again"],
        )
    of = dict(zip(numbers, parameters, strict=True))
    state = {number: _part_of(values, of.get(number)) for number, values in saved["state"].items()}
    return cast(OptimizerState, {**saved, "state": state})


def _part_of(value: object, parameter: Tensor | None) -> object:
    """What this rank has of a value: of a tensor with a sharded parameter's shape the same part as of the parameter."""
    if isinstance(value, SavedTensor):
        if parameter is None or not is_dtensor(parameter) or not value.shape or value.shape != tuple(parameter.shape):
            return value.whole().clone()
        part = torch.empty_like(parameter.detach(), dtype=value.dtype)
        local_of(part).copy_(value.region(shard_of(parameter).region))
        return part
    if isinstance(value, dict):
        return {key: _part_of(item, parameter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_part_of(item, parameter) for item in value)
    return value


def _settings(group: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in group.items() if key != "params"}


def _numbers(groups: Sequence[Mapping[str, object]]) -> Iterator[int]:
    return (number for group in groups for number in cast(list[int], group["params"]))


def _names(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[str]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return (names.get(id(parameter), f"#{number}") for number, parameter in enumerate(parameters))
