"""Gradients that a real step adds to a tensor in place, and a recording to a copy of it.

Sums of gradients are in gpuwise.tracing.accumulation. Scatters: a formula of autograd that makes zeros and adds to
them asks `areAnyTensorSubclassLike` first (torch/csrc/autograd/FunctionsManual.cpp,
aten/src/ATen/native/TensorAdvancedIndexing.cpp): a subclass of Tensor, which a fake tensor is, gets the operator that returns a
new tensor. A real step has neither that tensor nor the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from gpuwise.tracing.accumulation import ADDS, as_accumulated
from gpuwise.tracing.refusals import refuse_sparse_gradients

aten = torch.ops.aten
_IN_PLACE = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
}
# Of gather, take_along_dim; index_select; x[indices]; and what selects values: sort, topk, max, min, median, mode, kthvalue.
_NODES = tuple("Gather IndexSelect Index Sort Topk Max Min Median Nanmedian Mode Kthvalue Cummax Cummin".split())


def as_on_a_device(op: OpOverload, args: Sequence[object]) -> OpOverload:
    """The operator that a real step runs in the place of this one. Raises JobError where fake tensors can run neither."""
    if op is ADDS:
        return as_accumulated(op, args)
    refuse_sparse_gradients(op, args)
    in_place = _IN_PLACE.get(op)
    if in_place is None:
        return op
    node = torch._C._current_autograd_node()
    name = "" if node is None else node.name().removesuffix("Backward0").removesuffix("Backward1")
    buffer = args[0]
    fresh = isinstance(buffer, Tensor) and not buffer.requires_grad and not torch.is_grad_enabled()
    return in_place if fresh and name in _NODES else op
