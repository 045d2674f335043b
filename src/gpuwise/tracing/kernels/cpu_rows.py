"""Rows that gathers and scatters of CPUs move one after another: a loop around short copies, each turn of which costs time.

Turns by aten/src/ATen/native: Embedding.cpp and cpu/IndexKernel.cpp. `embedding` and `index_select` copy a row in a turn, the
gradient of an embedding adds one; `index`, `index_put`, `gather` and `scatter` take the numbers one by one.
"""

from __future__ import annotations

from math import prod

import torch

from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
Rows = tuple[int, int, int]  # turns; rows of the table; numbers in a row

_TABLE_FIRST = {aten.embedding, aten._embedding_bag, aten._embedding_bag_forward_only}
# Position of the tensor whose numbers are moved one by one; -1 for the result.
_MOVED = {
    aten.index: -1,
    aten.gather: -1,
    aten.take: -1,
    aten.index_put: 2,
    aten.index_put_: 2,
    aten._index_put_impl_: 2,
    aten._unsafe_index_put: 2,
    aten.scatter: 2,
    aten.scatter_: 2,
    aten.scatter_add: 2,
    aten.scatter_add_: 2,
    aten.scatter_reduce: 2,
    aten.index_add: 3,
    aten.index_add_: 3,
    aten.index_copy: 3,
    aten.index_copy_: 3,
}


def rows_moved(call: OperatorCall) -> Rows:
    """The turns of a gather or a scatter and its table; zeros for operators without such a loop."""
    if call.packet in _TABLE_FIRST:
        weight, indices = call.tensors(0, 1)
        return indices.numel(), weight.shape[0], weight.shape[1]
    if call.packet is aten.index_select:
        table, dim = call.tensor(0), call.args[1] % max(1, call.tensor(0).dim())
        before, behind = prod(table.shape[:dim]), prod(table.shape[dim + 1 :])
        return before * call.tensor(2).numel(), before * table.shape[dim] if table.dim() else 1, behind
    position = _MOVED.get(call.packet)
    if position is None:
        return 0, 0, 0
    moved = call.outputs[0] if position < 0 else call.args[position]
    return moved.numel(), call.tensor(0).numel(), 1
