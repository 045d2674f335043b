"""joined: products that read the same rows, as the one product that engines make of them (queries, keys and values; gates)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.serving.sharing import GROUPED
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence
from gpuwise.trace.trace import Trace

_AT = {name: COLUMNS.index(name) for name in COLUMNS}


def joined(trace: Trace, *, width: int) -> Trace:
    """A fused trace where products of one input are one product.

    Which ones read the same rows: those as deep as a token is wide, between two products that are as wide as a token, which end
    the halves of a block. Norms of queries and keys in between stay kernels of their own.

    width: elements of a token between the blocks.
    """
    source, gemm = trace.operations, KINDS.index("gemm")
    values, kept = source.values.copy(), list[int]()
    first: dict[tuple[str, int], int] = {}  # of the half of the block: the product that others join, by type and rows
    begun = False
    for row in range(len(source)):
        m, n, k, batch = (int(values[row, _AT[name]]) for name in ("m", "n", "k", "batch"))
        ends = begun and n == width
        if source.kind[row] == gemm and GROUPED not in source.name[row] and batch <= 1:
            key = source.dtype[row], m
            if k == width and not ends and key in first:
                join(values[first[key]], values[row])
                continue
            begun = not ends
            first = {} if ends else {**first, key: row} if k == width else first
        elif source.kind[row] == gemm:
            first, begun = {}, False
        kept.append(row)
    operations = replace(source, values=values).take(np.array(kept, dtype=np.int64))
    count = len(kept)
    zeros = np.zeros(count, dtype=np.int8)
    sequence = OperationSequence(np.arange(count, dtype=np.int32), trace.sequence.module[kept], zeros, zeros)
    return Trace(trace.header, operations, sequence, trace.storages, trace.modules)


def reads_same_rows(operations: Operations, before: int, operation: int) -> bool:
    """Whether two products that follow each other read the same rows, as far as a trace shows it."""
    gemm = KINDS.index("gemm")
    if operations.kind[before] != gemm or operations.kind[operation] != gemm:
        return False
    a, b = (operations.values[row] for row in (before, operation))
    return all(a[_AT[name]] == b[_AT[name]] for name in ("batch", "m", "k")) and int(a[_AT["batch"]]) <= 1


def join(into: np.ndarray, other: np.ndarray) -> None:
    """Adds the columns of a product to those of another; the rows that both read are read once."""
    m, n, k = (int(other[_AT[name]]) for name in "mnk")
    for name in ("flops", "bytes_read", "bytes_written", "n"):
        into[_AT[name]] += other[_AT[name]]
    if m and n:  # an expert has no rows where fewer tokens are routed than there are experts
        into[_AT["bytes_read"]] -= m * k * (int(other[_AT["bytes_written"]]) // (m * n))
