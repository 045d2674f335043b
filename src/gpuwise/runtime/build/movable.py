"""Whether a model that was built on one device can be moved to another, tensor by tensor."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def other_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each buffer and each tensor that is an attribute of a module, once, with its path."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for table in (module._buffers, vars(module)):
            for name, tensor in table.items():
                if isinstance(tensor, Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield _joined(path, name), tensor


def unusual_tensor(model: nn.Module) -> str:
    """Why the tensors of a model cannot be replaced one by one; "" if they can."""
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter:
            return f"the parameter {name} is of type {type(parameter).__name__}"
    owners = {parameter.untyped_storage()._cdata: name for name, parameter in model.named_parameters()}
    for name, tensor in other_tensors(model):
        if isinstance(tensor, nn.Parameter):
            return f"{name} is a parameter that is not registered as one"
        owner = owners.setdefault(tensor.untyped_storage()._cdata, name)
        if owner != name:
            return f"{owner} and {name} share memory"
    return ""


def tensors_on(device: torch.device) -> dict[int, Tensor]:
    """All tensors on a kind of device that Python code can reach, by identity."""
    gc.collect()
    reachable = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    return {id(tensor): tensor for tensor in reachable if tensor.device.type == device.type}


def left_behind(model: nn.Module, device: torch.device, before: set[int]) -> str:
    """What a model built on a device keeps there where it cannot be replaced: a tensor in a list, say. "" for nothing.

    Arguments:
        before: identities of the tensors on the device before the model was built.
    """
    replaceable = {id(tensor) for tensor in model.parameters()} | {id(tensor) for _, tensor in other_tensors(model)}
    for number, tensor in tensors_on(device).items():
        if number not in replaceable | before:
            return f"it keeps a tensor of shape {tuple(tensor.shape)} that is no parameter, buffer or attribute of a module"
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.device) and value.type == device.type:
                return f"its attribute {_joined(path, name)} is the device on which it is built"
    return ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
