"""One of several tensor-parallel ranks: a step whose linear layers, and what lies between them, are divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective
from gpuwise.trace.parallel.tensor_division import TINY_BYTES, divide
from gpuwise.trace.parallel.tensor_layers import SplitLayers, split_layers
from gpuwise.trace.parallel.tensor_parts import ALL, ALONG_K, divided
from gpuwise.trace.parallel.tensor_traffic import traffic
from gpuwise.trace.tables import CATEGORIES, COLUMNS
from gpuwise.trace.trace import Trace

_GRADIENT = CATEGORIES.index("gradient")
_WRITTEN, _WORKSPACE = (COLUMNS.index(name) for name in ("bytes_written", "workspace_bytes"))


def tensor_parallel(trace: Trace, strategy: Strategy, *, by_heads: bool = False) -> tuple[Trace, tuple[Collective, ...]]:
    """The step of one rank along tp, and the collectives of that axis.

    Arguments:
        trace: a step, or a stage of one, without adapters.
        by_heads: whether one layer that makes queries, keys and values lays them out head by head, as Megatron-LM's does, so
            that a rank attends with its own heads. False (default): its output is gathered.

    Raises InputError where heads, features or the sequence do not divide, UnsupportedError where no layers are recognised.
    """
    layers = split_layers(trace, strategy.mesh.tp, by_heads=by_heads)
    return tensor_rank(trace, strategy, layers), traffic(trace, strategy, layers)


def tensor_rank(trace: Trace, strategy: Strategy, layers: SplitLayers) -> Trace:
    """The step of one rank along tp, made once for each degree and each way to divide sequences and the loss."""
    parallelism = strategy.parallelism
    key = ("tensor rank", strategy.mesh.tp, layers, parallelism.sequence_parallel, parallelism.loss_parallel)
    return trace.once(key, lambda: _tensor_rank(trace, strategy, layers))


def _tensor_rank(trace: Trace, strategy: Strategy, layers: SplitLayers) -> Trace:
    way, part = divide(trace, layers, strategy.parallelism)
    degree, storages = strategy.mesh.tp, trace.storages
    key = trace.sequence.operation.astype(np.int64) * (ALONG_K + 1) + way
    keys, row = np.unique(key, return_inverse=True)
    rows, ways = keys // (ALONG_K + 1), keys % (ALONG_K + 1)
    ops = trace.operations.take(rows)
    values = divided(ops.values, ways, degree)
    if strategy.parallelism.loss_parallel:
        # _log_softmax_backward_handler in torch/distributed/tensor/parallel/loss.py: two results of its size, not one.
        backward = np.array([name.startswith("aten._log_softmax_backward") for name in ops.name]) & (ways == ALL)
        values[backward, _WORKSPACE] += values[backward, _WRITTEN]
    large = part & (storages.size_bytes >= TINY_BYTES)
    size_bytes = np.where(large, -(-storages.size_bytes // degree), storages.size_bytes)
    return replace(
        trace,
        header=replace(trace.header, gradient_shapes=_shapes(trace, layers, large, degree)),
        operations=replace(ops, values=values),
        sequence=replace(trace.sequence, operation=row.ravel().astype(np.int32)),
        storages=replace(storages, size_bytes=size_bytes),
    )


def _shapes(trace: Trace, layers: SplitLayers, part: np.ndarray, degree: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of gradients. part: which storages are divided."""
    header, storages = trace.header, trace.storages
    gradients = np.flatnonzero(storages.category == _GRADIENT).tolist()
    if len(gradients) != len(header.gradient_shapes):
        return header.gradient_shapes
    rows = {pair.row.module for pair in layers.pairs}
    shapes = []
    for shape, index in zip(header.gradient_shapes, gradients, strict=True):
        by_rows = int(storages.module[index]) in rows
        if part[index] and shape:
            dim = 1 if by_rows and len(shape) > 1 else 0
            shape = (*shape[:dim], -(-shape[dim] // degree), *shape[dim + 1 :])
        shapes.append(shape)
    return tuple(shapes)
