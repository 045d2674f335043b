"""Draws the random numbers of tensors in host memory on another device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gpuwise.runtime.parallel.torch_types import Arguments, Keywords

_HOST = torch.device("cpu")


class DrawnOn(TorchDispatchMode):
    """Inside, random operators on host tensors run on `device`, by its generator, one tensor at a time.

    A model that is built in host memory thus begins with the weights that it would have on the device, where the generator
    of a seed gives other numbers than the host's. A generator that the caller names is left alone.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if any(argument.name == "device" for argument in func._schema.arguments):
            if torch.device(kwargs.get("device") or _HOST) != _HOST:
                return func(*args, **kwargs)
            kwargs["device"] = self.device
        there: dict[int, Tensor] = {}
        back: Callable[[Tensor], Tensor] = lambda result: result.to(_HOST)  # noqa: E731

        def moved(tensor: Tensor) -> Tensor:
            return there.setdefault(id(tensor), tensor.to(self.device, copy=True)) if tensor.device == _HOST else tensor

        moved_args, moved_kwargs = tree_map_only(Tensor, moved, (tuple(args), kwargs))
        result = func(*moved_args, **moved_kwargs)
        if func._schema.is_mutable:  # in place: the first argument is what is filled
            args[0].copy_(result)
            return args[0]
        return tree_map_only(Tensor, back, result)
