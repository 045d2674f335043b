"""A rank's recorded step with the kernels of Transformer Engine and Megatron-Core where PyTorch runs others.

- Attention is cuDNN's.
- Norms and the loss stream their bytes once.
- Products of weights' gradients add to what earlier micro-batches left (gradient_accumulation_fusion).
- In 8 and 4 bits, linear layers of blocks, but for routers, multiply quantized operands; the output layer stays in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.support.bridge_precision import LowPrecision
from gpuwise.trace import Trace
from gpuwise.trace.tables import COLUMNS, KINDS, PHASES, OperationRow, Operations, OperationValues
from gpuwise.trace.update.edit import Edit

_GEMM, _STREAMED = KINDS.index("gemm"), KINDS.index("elementwise")
_ONE_PASS = [KINDS.index(name) for name in ("norm", "loss")]
_READ, _WRITTEN, _BATCH, _M, _N, _K = (COLUMNS.index(name) for name in ("bytes_read", "bytes_written", "batch", "m", "n", "k"))
_ADD, _QUANTIZE = "aten.add_.Tensor", "quantize"
_BY_COLUMNS, _BY_ROWS = ("qkv", "up"), ("out", "down")


def with_core_kernels(trace: Trace, low: LowPrecision | None, *, tp: int) -> Trace:
    """The step with those kernels. low: None multiplies in 16 bits. tp: ranks that share what lies between layers."""
    weights = {_padded(shape) for shape in trace.header.gradient_shapes if len(shape) > 1}
    makes_weight = np.array(
        [kind == _GEMM and tuple(row) in weights for kind, row in zip(trace.operations.kind, _sizes(trace), strict=True)]
    )
    edit = Edit(trace)
    _drop_sums(trace, edit, weights)
    if low is not None:
        _quantize(trace, edit, low, makes_weight, tp)
    shapes = trace.header.gradient_shapes
    # Products keep their numbers in the table, so what changes them comes behind what inserts rows.
    changed = edit.result(trace.header.strategy, gradient_shapes=shapes)
    return _with_formats(changed, low, makes_weight)


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) == 3 else (1, *shape)


def _sizes(trace: Trace) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in trace.operations.values[:, [_BATCH, _M, _N]].tolist()]


def _drop_sums(trace: Trace, edit: Edit[Trace], weights: set[tuple[int, ...]]) -> None:
    """Takes out the kernels that add a weight's gradient to that of earlier micro-batches."""
    sizes_bytes = {2 * int(np.prod(shape)) for shape in weights}
    operations = trace.operations
    sums = [
        name == _ADD and int(row[_WRITTEN]) in sizes_bytes for name, row in zip(operations.name, operations.values, strict=True)
    ]
    for position in np.flatnonzero(np.array(sums)[trace.sequence.operation]).tolist():
        edit.drop(position)


def in_blocks(trace: Trace) -> np.ndarray:
    """Whether each module is a linear layer of a block, or its experts, that multiplies in few bits. Shape (modules,)."""
    blocks = tuple(f"{path}." for path in trace.header.blocks)
    names = (*_BY_COLUMNS, *_BY_ROWS, "mlp")
    return np.array([path.startswith(blocks) and path.rsplit(".", 1)[-1] in names for path in trace.modules])


def _quantize(trace: Trace, edit: Edit[Trace], low: LowPrecision, makes_weight: np.ndarray, tp: int) -> None:
    """Adds the kernels that quantize what layers read, and the gradients of what they make.

    A layer's input is that of its rank along the sequence, if it is gathered for it; so is the gradient of a layer by rows.
    """
    sequence, operations = trace.sequence, trace.operations
    linear = in_blocks(trace)[sequence.module] & (operations.kind[sequence.operation] == _GEMM)
    for position in np.flatnonzero(linear).tolist():
        row, name = int(sequence.operation[position]), trace.modules[sequence.module[position]].rsplit(".", 1)[-1]
        batch, m, n, k = operations.values[row, [_BATCH, _M, _N, _K]].tolist()
        forward = PHASES[sequence.phase[position]] == "forward"
        if forward:
            count, normed = batch * m * k, name in _BY_COLUMNS
        elif makes_weight[row]:
            count, normed = batch * k * (n if name == "mlp" else m), False
        else:
            continue
        if name in (_BY_COLUMNS if forward else _BY_ROWS):
            count //= tp
        read, written = (low.normed_read, low.normed_written) if normed else (low.read, low.written)
        if read:
            values = OperationValues(bytes_read=int(read * count), bytes_written=int(written * count), kernels=1)
            one = OperationRow(_QUANTIZE, _STREAMED, "bfloat16", values)
            phase = PHASES[sequence.phase[position]]
            edit.insert(position, [one], (), phase=phase, micro_step=int(sequence.micro_step[position]))


def _with_formats(trace: Trace, low: LowPrecision | None, makes_weight: np.ndarray) -> Trace:
    """Each operation as it runs inside blocks and outside: formats, names and bytes."""
    sequence, operations = trace.sequence, trace.operations
    linear = in_blocks(trace)[sequence.module] & (operations.kind[sequence.operation] == _GEMM)
    key = sequence.operation.astype(np.int64) * 2 + (linear if low is not None else False)
    keys, row = np.unique(key, return_inverse=True)
    rows, few = keys // 2, keys % 2 == 1
    values, kind = operations.values[rows].copy(), operations.kind[rows]
    adds = np.append(makes_weight, np.zeros(len(operations) - len(makes_weight), dtype=bool))[rows]
    if low is not None:
        values[few, _READ] = (values[few, _READ] * (low.bytes_per_number / 2)).astype(np.int64)
    values[adds, _READ] += values[adds, _WRITTEN]
    names = [operations.name[index].replace("_flash_attention", "_cudnn_attention") for index in rows.tolist()]
    dtypes = [low.dtype if low is not None and is_few else operations.dtype[i] for i, is_few in zip(rows, few, strict=True)]
    streams = np.isin(kind, _ONE_PASS)
    names = [name.removeprefix("aten.") if one else name for name, one in zip(names, streams.tolist(), strict=True)]
    return replace(
        trace,
        operations=Operations(
            tuple(names),
            np.where(streams, _STREAMED, kind).astype(kind.dtype),
            tuple(dtypes),
            values,
            operations.group[rows],
            operations.channels_last[rows],
        ),
        sequence=replace(sequence, operation=row.ravel().astype(np.int32)),
    )
