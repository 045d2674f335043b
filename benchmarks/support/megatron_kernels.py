"""Kernels of Megatron-LM where eager PyTorch runs others: the same step with their bytes, at the speed at which bytes move.

- Scale, causal mask and softmax are one kernel, and so are their gradients (megatron/fused_kernels,
  scaled_upper_triang_masked_softmax): a pass over the scores that reads those up to the diagonal. Where that kernel does not
  apply, they are PyTorch's own and the softmax is one pass.
- Bias, dropout and the sum with the residual are one kernel (bias_dropout_add in megatron/model/transformer.py).
- Layer norms are apex's: a pass over the rows. So are the sums over the vocabulary (vocab_parallel_cross_entropy).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.trace import Trace
from gpuwise.trace.parallel.segments import select
from gpuwise.trace.tables import COLUMNS, KINDS, Operations

_ELEMENTWISE, _RANDOM = KINDS.index("elementwise"), KINDS.index("random")
_ONE_PASS = [KINDS.index(name) for name in ("norm", "loss")]
_READ, _WRITTEN = COLUMNS.index("bytes_read"), COLUMNS.index("bytes_written")
_WORKSPACE = COLUMNS.index("workspace_bytes")
_DROPOUT, _ADD, _SOFTMAX = "aten.native_dropout.default", "aten.add.Tensor", "aten._softmax"
_MASK_SHARE = 0.5  # bytes of a dropout's mask over those of its half-precision output


def with_megatron_kernels(trace: Trace, *, fused: bool) -> Trace:
    """The step with those kernels. fused: of scale, mask and softmax."""
    trace = _with_fused_sums(trace)
    operations = trace.operations
    softmax = np.array([name.startswith(_SOFTMAX) for name in operations.name])
    streams = softmax | np.isin(operations.kind, _ONE_PASS)
    values = operations.values.copy()
    values[softmax, _WORKSPACE] = 0
    if fused:
        values[softmax, _READ] //= 2  # rows end at the diagonal
    names = tuple(
        name.removeprefix("aten.") if fused else name for name, fused in zip(operations.name, streams.tolist(), strict=True)
    )
    kind = np.where(streams, _ELEMENTWISE, operations.kind).astype(operations.kind.dtype)
    return replace(trace, operations=replace(operations, name=names, kind=kind, values=values))


def _with_fused_sums(trace: Trace) -> Trace:
    """Dropouts whose output is added to the residual right away become part of that sum."""
    sequence, operations, storages = trace.sequence, trace.operations, trace.storages
    name = np.array(operations.name)[sequence.operation]
    dropout = np.append((name[:-1] == _DROPOUT) & (name[1:] == _ADD), False)
    dropout[:-1] &= sequence.module[:-1] == sequence.module[1:]
    sums = np.flatnonzero(dropout) + 1
    rows, row_of = np.unique(sequence.operation[sums], return_inverse=True)
    values = operations.values[rows]
    # Beside what is read, so that bytes written are those of what a block passes on.
    values[:, _READ] = values[:, _READ] + (values[:, _WRITTEN] * _MASK_SHARE).astype(np.int64)
    operation = sequence.operation.copy()
    operation[sums] = len(operations) + row_of
    grown = Operations(
        name=(*operations.name, *["dropout_add"] * len(rows)),
        kind=np.concatenate([operations.kind, np.full(len(rows), _RANDOM, dtype=operations.kind.dtype)]),
        dtype=(*operations.dtype, *(operations.dtype[row] for row in rows.tolist())),
        values=np.concatenate([operations.values, values]),
        group=np.concatenate([operations.group, operations.group[rows]]),
        channels_last=np.concatenate([operations.channels_last, operations.channels_last[rows]]),
    )
    between = (storages.born >= 0) & (storages.died == storages.born + 1)
    between &= dropout[np.maximum(storages.born, 0)]
    trace = replace(trace, operations=grown, sequence=replace(sequence, operation=operation))
    return select(trace, ~dropout, ~between)
