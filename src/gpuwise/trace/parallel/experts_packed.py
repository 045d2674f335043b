"""One of several expert-parallel ranks of a mixture whose experts lie in one module, as in Hugging Face's models.

A rank computes as many rows as one device does, each with the weights of the experts that it has: of these it has a part, of
activations as many as before. Rows are sorted and moved twice, to the rank of their experts and there to each of them
(gpuwise.runtime.parallel.experts_packed).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header
from gpuwise.trace.parallel.blocks import full_gradients
from gpuwise.trace.parallel.communication import Collective, group_along
from gpuwise.trace.parallel.segments import FORWARD
from gpuwise.trace.parallel.variant import in_experts
from gpuwise.trace.tables import BEFORE, CATEGORIES, COLUMNS, KINDS, PHASES
from gpuwise.trace.trace import Trace

_GEMM, _RECOMPUTE = KINDS.index("gemm"), PHASES.index("recompute")
_MOVES = [KINDS.index(kind) for kind in ("sort", "embedding", "scatter", "copy", "reduction", "other")]
_PARAMETER, _GRADIENT, _TEMPORARY = (CATEGORIES.index(name) for name in ("parameter", "gradient", "temporary"))
_GROUPED = "_grouped_mm"  # in the name of a product in which each row meets the matrix of its expert
_UNCHANGED, _PRODUCT, _SUM = range(3)  # what becomes of an operation


def packed_rank(trace: Trace, strategy: Strategy) -> tuple[Trace, tuple[Collective, ...]]:
    """The step of one rank along ep, and the collectives of that axis. Every expert gets as many rows as the others.

    Raises UnsupportedError for experts that are not computed by grouped products.
    """
    inside = in_experts(trace)
    _check_products(trace, inside)
    part = _with_part_of_weights(trace, inside, strategy.mesh.ep)
    return _with_second_moves(part, inside), _moved(trace, strategy, inside)


def _check_products(trace: Trace, inside: np.ndarray) -> None:
    sequence, operations = trace.sequence, trace.operations
    products = np.unique(sequence.operation[inside[sequence.module] & (operations.kind == _GEMM)[sequence.operation]])
    others = [operations.name[row] for row in products.tolist() if _GROUPED not in operations.name[row]]
    if others or not len(products):
        raise UnsupportedError(
            f"the experts of {trace.header.job} run {others[0] if others else 'no product'}, and grouped products alone are "
            "composed for a rank with some of them.",
            ["gpuwise forecast of the job itself, which records each rank with PyTorch", "leave out ep of --mesh"],
        )


def _with_part_of_weights(trace: Trace, inside: np.ndarray, degree: int) -> Trace:
    """The step with a part of the experts' weights and gradients. inside: modules of experts. Shape (modules,)."""
    operations, sequence, storages = trace.operations, trace.sequence, trace.storages
    ours = inside[storages.module]
    added = np.zeros(len(storages), dtype=bool)  # gradients that are added to those of earlier micro-batches
    added[full_gradients(trace, 1)] = True
    added &= ours & (storages.category == _TEMPORARY)
    divided = added | (ours & np.isin(storages.category, [_PARAMETER, _GRADIENT]))
    changed = np.where(inside[sequence.module] & (operations.kind == _GEMM)[sequence.operation], _PRODUCT, _UNCHANGED)
    changed[storages.died[added]] = _SUM
    keys, row = np.unique(sequence.operation.astype(np.int64) * 3 + changed, return_inverse=True)
    values = _values_of_part(trace, keys // 3, keys % 3, degree)
    return replace(
        trace,
        header=_header_of_part(trace, inside, degree),
        operations=replace(operations.take(keys // 3), values=values),
        sequence=replace(sequence, operation=row.ravel().astype(np.int32)),
        storages=replace(storages, size_bytes=np.where(divided, storages.size_bytes // degree, storages.size_bytes)),
    )


def _values_of_part(trace: Trace, rows: np.ndarray, changed: np.ndarray, degree: int) -> np.ndarray:
    """The numbers of operations on a part of the weights: those that read weights read fewer, those that write them less."""
    values = trace.operations.values[rows].astype(np.float64)
    read, written, m, n, k = (COLUMNS.index(name) for name in ("bytes_read", "bytes_written", "m", "n", "k"))
    element_bytes = _element_bytes(trace, rows)
    of_rows = values[:, m] * values[:, k] * element_bytes
    gradient = values[:, written] > values[:, m] * values[:, n] * element_bytes  # one matrix for each expert
    product, total = changed == _PRODUCT, changed == _SUM
    fewer = of_rows + (values[:, read] - of_rows) / degree
    values[:, read] = np.where(product & ~gradient, fewer, values[:, read] / np.where(total, degree, 1))
    values[:, written] /= np.where(total | (product & gradient), degree, 1)
    return values.astype(np.int64)


def _header_of_part(trace: Trace, inside: np.ndarray, degree: int) -> Header:
    """The header with the shapes of the gradients of a rank. Features come before experts: fully_shard divides them where it
    has more ranks than there are experts."""
    header, storages = trace.header, trace.storages
    modules = storages.module[storages.category == _GRADIENT]
    if len(modules) != len(header.gradient_shapes):
        return header
    shapes = [
        (shape[1], shape[0] // degree, *shape[2:]) if packed else shape
        for shape, packed in zip(header.gradient_shapes, inside[modules].tolist(), strict=True)
    ]
    return replace(header, gradient_shapes=tuple(shapes))


def _with_second_moves(trace: Trace, inside: np.ndarray) -> Trace:
    """The step in which every operation runs twice that sorts or moves rows of experts."""
    sequence, storages, length = trace.sequence, trace.storages, len(trace.sequence)
    twice = inside[sequence.module] & np.isin(trace.operations.kind[sequence.operation], _MOVES)
    times = 1 + twice
    last = np.append(np.cumsum(times) - 1, times.sum())  # of each position; of the end of the step
    first = last - np.append(times - 1, 0)
    columns = (getattr(sequence, name) for name in ("operation", "module", "phase", "micro_step", "stream"))
    return replace(
        trace,
        sequence=type(sequence)(*(np.repeat(column, times) for column in columns)),
        storages=replace(
            storages,
            born=np.where(storages.born < 0, BEFORE, first[np.maximum(storages.born, 0)]).astype(storages.born.dtype),
            died=last[np.minimum(storages.died, length)].astype(storages.died.dtype),
        ),
    )


def _moved(trace: Trace, strategy: Strategy, inside: np.ndarray) -> tuple[Collective, ...]:
    """Rows go to their experts and back, in forward and in backward: two all-to-alls each."""
    sequence, operations = trace.sequence, trace.operations
    products = (operations.kind[sequence.operation] == _GEMM) & (sequence.micro_step == 0) & inside[sequence.module]
    repeated = 1 + bool((sequence.phase[products] == _RECOMPUTE).any())
    forward = np.flatnonzero(products & (sequence.phase == FORWARD))
    _, firsts = np.unique(sequence.module[forward], return_index=True)  # the first product of each mixture takes its rows
    rows = sequence.operation[forward[firsts]]
    total = int((operations.column("m")[rows] * operations.column("k")[rows] * _element_bytes(trace, rows)).sum())
    passes, micro_batches = 2 * (repeated + 1), strategy.accumulation
    group = group_along(strategy.mesh, "ep")
    return (Collective("all_to_all", group, passes * total * micro_batches, passes * len(rows) * micro_batches),)


def _element_bytes(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Bytes of the numbers that products multiply."""
    return np.array([4 if trace.operations.dtype[row] == "float32" else 2 for row in rows.tolist()])
