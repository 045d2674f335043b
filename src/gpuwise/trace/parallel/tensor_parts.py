"""Operations and storages of a step as parts of a tensor-parallel rank: how each is divided."""

from __future__ import annotations

import numpy as np

from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.parallel.tensor_layers import Layer
from gpuwise.trace.tables import CATEGORIES, COLUMNS
from gpuwise.trace.trace import Trace

_PARAMETER, _GRADIENT = CATEGORIES.index("parameter"), CATEGORIES.index("gradient")
_FLOPS, _READ, _WRITTEN, _WORKSPACE, _BATCH, _M, _N, _K = (
    COLUMNS.index(name) for name in ("flops", "bytes_read", "bytes_written", "workspace_bytes", "batch", "m", "n", "k")
)
# How an operation is divided: not at all, in all its sizes, or a product along one of its dimensions.
WHOLE, ALL, ALONG_M, ALONG_N, ALONG_K = range(5)


def rows_by_position(positions: np.ndarray, length: int) -> list[list[int]]:
    """The rows of each position."""
    rows: list[list[int]] = [[] for _ in range(length)]
    inside = np.flatnonzero((positions >= 0) & (positions < length))
    for row, position in zip(inside.tolist(), positions[inside].tolist(), strict=True):
        rows[position].append(row)
    return rows


def divided(values: np.ndarray, ways: np.ndarray, degree: int) -> np.ndarray:
    """Values of operations, divided. A product reads m × k and k × n numbers and writes m × n."""
    result = values.astype(np.float64)
    everything = ways == ALL
    for column in (_FLOPS, _READ, _WRITTEN, _WORKSPACE):
        result[everything, column] /= degree
    result[everything, _BATCH] = np.ceil(result[everything, _BATCH] / degree)
    m, n, k = (values[:, column].astype(np.float64) for column in (_M, _N, _K))
    left, right = m * k, n * k
    for way, column, read in (
        (ALONG_M, _M, left / degree + right),
        (ALONG_N, _N, left + right / degree),
        (ALONG_K, _K, (left + right) / degree),
    ):
        rows = ways == way
        whole = np.maximum(left + right, 1)
        result[rows, _FLOPS] /= degree
        result[rows, _READ] *= (read / whole)[rows]
        if way != ALONG_K:
            result[rows, _WRITTEN] /= degree
        result[rows, column] /= degree
    return np.ceil(result).astype(np.int64)


def tied_weight(trace: Trace, head: Layer, lasting: np.ndarray) -> list[int]:
    """The storages of the weight, and its gradient, of a head that has none of its own: the largest outside of blocks, where
    they have as many elements as the head needs. The embedding whose weight it is may be in another stage.

    Arguments:
        lasting: which storages are parameters or gradients. Shape (storages,).
    """
    size_bytes, elements = trace.storages.size_bytes, head.outputs * head.inputs
    outside = block_of_modules(trace.modules, trace.header.blocks)[trace.storages.module] < 0
    fits = lasting & outside & np.isin(size_bytes, [elements * width for width in (1, 2, 4, 8)])
    storages: list[int] = []
    for category in (_PARAMETER, _GRADIENT):
        rows = np.flatnonzero(fits & (trace.storages.category == category)).tolist()
        storages += [row for row in rows if size_bytes[row] == size_bytes[rows].max()]
    return storages
