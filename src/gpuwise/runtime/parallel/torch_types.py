"""Types at PyTorch's extension points (modes, hooks, autograd functions), which pass on what a model's code passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Argument: TypeAlias = Any
Arguments = tuple[Argument, ...]
Keywords = Mapping[str, Argument]
Function = Callable[..., Argument]
# What an autograd function keeps for its backward pass: any attribute may be set.
Saved: TypeAlias = Any
