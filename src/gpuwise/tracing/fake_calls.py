"""Operators on fake tensors: their call, and what stands for their results where it fails inside autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.autograd.function import BackwardCFunction

from gpuwise.tracing.refusals import dynamic_shape, no_shape_rule
from gpuwise.tracing.virtual_device import DEVICE


def called(func: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """The results of an operator. Raises JobError where fake tensors have none."""
    try:
        return func(*args, **kwargs)
    except DynamicOutputShapeException:
        raise dynamic_shape(func) from None
    except (DataDependentOutputException, UnsupportedOperatorException):
        raise no_shape_rule(str(func)) from None


def stand_ins(func: OpOverload, args: Sequence[object]) -> object:
    """Results in place of an operator that has raised, so that the exception does not pass through autograd's C++.

    There, autograd leaves the virtual device while Python's exception is still set. PyTorch calls Python to do so, takes the
    exception for a failure of that call, and ends the process. With empty gradients autograd fails by itself, or not at all.

    Returns None where the exception may pass: in a forward pass, and in a backward that is written in Python.
    """
    node = torch._C._current_autograd_node()
    if node is None or isinstance(node, BackwardCFunction):
        return None
    if func._schema.is_mutable:
        return args[0] if len(func._schema.returns) == 1 else None
    results: list[Tensor] = []
    for returned in func._schema.returns:
        if not isinstance(returned.type, torch.TensorType):
            return None
        results.append(torch.empty(0, device=DEVICE))
    return results[0] if len(results) == 1 else tuple(results)
