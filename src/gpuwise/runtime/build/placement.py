"""Makes a model on its device, or without memory under fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gpuwise.runtime.build.adapters import awaits_packing, code_tables_of_one_model, own_scales, packed
from gpuwise.runtime.build.meta_device import made_on_meta


def make_model(
    factory: Callable[[], nn.Module], device: torch.device, dtype: torch.dtype | None, *, on_host: bool = False
) -> nn.Module:
    """Calls the factory on the device and casts floating-point parameters and buffers.

    Under fake tensors the factory runs on `meta`, outside the fake mode, so that constructors can compute with small real
    tensors (stochastic depth rates, for example). Every tensor is then replaced by an empty one on the device.

    Arguments:
        factory: makes the model.
        device: device of the model.
        dtype: dtype of the parameters and buffers; None keeps theirs.
        on_host: whether to run the factory in host memory, for weights that take less memory on the device.
    """
    if active_fake_mode() is None:
        with torch.device("cpu") if on_host else device:
            model = factory()
        replace_tensors(model, device, lambda tensor: moved(tensor, device, dtype))
        return model
    with unset_fake_temporarily():
        model = made_on_meta(factory)
    with code_tables_of_one_model():
        replace_tensors(model, device, lambda tensor: moved(tensor, device, dtype))
    own_scales(model)
    return model


def in_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Converts a tensor of four dimensions to channels-last layout; returns any other tensor unchanged."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def to_channels_last(model: nn.Module, device: torch.device) -> None:
    """Converts parameters and buffers of four dimensions to channels-last layout.

    The strides are those of `Module.to(memory_format=...)`, also for tensors with a single channel.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    replace_tensors(model, device, move, among=("parameters", "buffers"))


def moved(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor on a device, without values if it has none; floating-point numbers in `dtype`, None for their own."""
    target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    if tensor.device.type == device.type and tensor.dtype == target:
        return tensor
    if tensor.device.type == "meta" or active_fake_mode() is not None:
        return torch.empty_like(tensor, device=device, dtype=target)
    return tensor.to(device, target)


def replace_tensors(
    model: nn.Module,
    device: torch.device,
    move: Callable[[torch.Tensor], torch.Tensor],
    *,
    among: Collection[str] = ("parameters", "buffers", "attributes"),
) -> None:
    """Replaces a model's tensors of these kinds, attributes being other tensors of a module; shared ones stay shared.

    `Module.to` cannot be used: it refuses fake parameters, and it unties shared ones when the device type changes.
    """
    done: dict[int, torch.Tensor] = {}

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in done and awaits_packing(tensor):
            done[id(tensor)] = packed(tensor, device)
        if id(tensor) not in done:
            values = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
            result = move(values)
            if isinstance(tensor, nn.Parameter):
                result = tensor if result is values else nn.Parameter(result, requires_grad=tensor.requires_grad)
            done[id(tensor)] = result
        return done[id(tensor)]

    for module in model.modules():
        tables: dict[str, dict[str, Any]] = {
            "parameters": module._parameters,
            "buffers": module._buffers,
            "attributes": vars(module),
        }
        for table in (table for kind, table in tables.items() if kind in among):
            for name, value in list(table.items()):
                if isinstance(value, torch.Tensor):
                    table[name] = replaced(value)
