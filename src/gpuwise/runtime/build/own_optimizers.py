"""A job's own optimizers: several by name, and optimizers that evaluate the loss themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gpuwise.errors import GpuwiseError, JobError


def needs_closure(optimizer: object) -> bool:
    """Whether an optimizer's step requires a closure, as in LBFGS."""
    step = getattr(optimizer, "step", None)
    if step is None:
        return False
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class NamedOptimizers:
    """A job's own optimizers by name, with the part of an optimizer's interface that a run needs."""

    def __init__(self, parts: Mapping[str, Optimizer]):
        self.parts = dict(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts.values() for group in part.param_groups]

    @property
    def state(self) -> dict[tuple[str, Tensor], dict[str, object]]:
        """The state by optimizer name and parameter, because several optimizers may have the same parameter."""
        return {(name, p): state for name, part in self.parts.items() for p, state in part.state.items()}

    def state_dict(self) -> dict[str, object]:
        return {name: part.state_dict() for name, part in self.parts.items()}


def named_optimizers(named: Mapping[str, Callable[[nn.Module], Optimizer]], model: nn.Module) -> NamedOptimizers:
    """Makes the optimizers. Raises JobError when a function fails or does not return an optimizer."""
    parts = {}
    for name, make in named.items():
        try:
            optimizer = make(model)
        except GpuwiseError:
            raise
        except Exception as error:  # the user's own code may raise anything
            raise JobError(
                f"the job's optimizer {name!r} cannot be made: {type(error).__name__}: {error}.",
                ["a function of the model: lambda model: Adam(model.part.parameters())"],
            ) from error
        if not isinstance(optimizer, Optimizer):
            raise JobError(
                f"the job's optimizer {name!r} is a {type(optimizer).__name__}, not a torch.optim.Optimizer.",
                ["lambda model: torch.optim.Adam(model.part.parameters())"],
            )
        parts[name] = optimizer
    return NamedOptimizers(parts)
