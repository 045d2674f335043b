"""Where autograd adds one gradient to another in place.

A parameter that is used twice (tied embeddings) has two gradients, and a tensor of which parts are used has one of each part,
as large as the tensor. Autograd adds the second to the memory of the first where nothing else refers to it
(can_accumulate_inplace in torch/csrc/autograd/input_buffer.cpp), but makes a third tensor whenever a dispatch mode is active,
as in a recording.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.graph import Node

ADDS = torch.ops.aten.add.Tensor
# References to a tensor, and to its storage, that a dispatch mode sees where autograd has the only one.
_TENSOR_COUNT, _STORAGE_COUNT = 4, 2
_OF_PARTS = ("SliceBackward0", "SelectBackward0")  # whose own formulas add nothing


def as_accumulated(func: OpOverload, args: Sequence[object]) -> OpOverload:
    """The operator that runs without a dispatch mode: `add_` where gradients of a parameter or of parts are added in place."""
    node = torch._C._current_autograd_node()
    if node is None or torch.is_grad_enabled() or len(args) != 2:
        return func
    gradient, other = args
    in_place = (
        isinstance(gradient, Tensor)
        and isinstance(other, Tensor)
        and gradient.shape == other.shape
        and (node.name() in _OF_PARTS or _goes_to_a_parameter(node, gradient))
        and _is_dense(gradient)
        and gradient._use_count() <= _TENSOR_COUNT  # type: ignore[attr-defined]
        and torch._C._storage_Use_Count(gradient.untyped_storage()._cdata) <= _STORAGE_COUNT
    )
    return torch.ops.aten.add_.Tensor if in_place else func


def _goes_to_a_parameter(node: Node, gradient: Tensor) -> bool:
    """Whether the node passes gradients on to a parameter of this shape and type."""
    leaves = [getattr(following, "variable", None) for following, _ in node.next_functions]
    return any(leaf is not None and leaf.shape == gradient.shape and leaf.dtype == gradient.dtype for leaf in leaves)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements lie side by side, in any order of the dimensions."""
    return tensor.numel() == 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
