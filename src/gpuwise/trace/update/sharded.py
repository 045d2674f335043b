"""The optimizer's part of a step where each rank updates its shards of the parameters."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpuwise.strategy import Strategy, check_techniques, kernels_of
from gpuwise.trace.tables import CATEGORIES, COLUMNS, PHASES
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.edit import Edit
from gpuwise.trace.update.optimizers import parameters_of
from gpuwise.trace.update.rows import Parameter, UpdateRows
from gpuwise.trace.update.whole import state_bytes, whole_update

_SCALED = [COLUMNS.index(name) for name in ("flops", "bytes_read", "bytes_written", "workspace_bytes")]
_UPDATED = [CATEGORIES.index(name) for name in ("optimizer_state", "temporary")]


def sharded_kernels(strategy: Strategy, optimizer: str) -> str:
    """The kernels in which PyTorch 2.13 updates sharded parameters. Raises UnsupportedError for optimizers it cannot shard."""
    check_techniques(strategy.but(optimizer=optimizer))
    if optimizer in ("sgd", "momentum"):  # aten._fused_sgd_ has no sharding strategy
        return strategy.optimizer_kernels or "foreach"
    return kernels_of(optimizer, strategy.optimizer_kernels)


def with_sharded_update(trace: Trace, strategy: Strategy, optimizer: str, *, ranks: np.ndarray, widened: float = 1.0) -> Trace:
    """The step with an update of rank 0's shards: its operations, their temporaries and the state.

    Arguments:
        trace: a plain step of one device with any optimizer.
        ranks: number of those that split the parameters of each module; 1 where they are parts by tensor parallelism or of a
            stage alone. Shape (modules,).
        widened: bytes of a sharded parameter's element over those recorded. Default 1.

    fully_shard splits the first dimension, and rank 0 has the largest part (chunk_with_empty in
    torch/distributed/fsdp/_fully_shard/_fsdp_common.py). What depends on the size of a tensor is decided by the shard's.
    """
    kernels = sharded_kernels(strategy, optimizer)
    edit = Edit(trace)
    update, states = _update(
        tuple(parameters_of(trace, edit)),
        tuple(ranks[edit.modules_of_parameters].tolist()),
        widened,
        optimizer,
        kernels,
        scaled=strategy.precision == "amp-fp16",
        keep_gradients=strategy.keep_gradients,
        clipped=edit.clips_scaled,
    )
    edit.insert_update(update)
    edit.add_states(states, edit.modules_of_parameters)
    return edit.result(trace.header.strategy, gradient_shapes=trace.header.gradient_shapes)


@lru_cache(maxsize=64)  # the same at every micro-batch
def _update(
    parameters: tuple[Parameter, ...],
    ranks: tuple[int, ...],
    widened: float,
    optimizer: str,
    kernels: str,
    *,
    scaled: bool,
    keep_gradients: bool,
    clipped: bool,
) -> tuple[UpdateRows, list[list[int]]]:
    """The update of rank 0's shards, and the sizes of the state of each."""
    shards = [
        Parameter((-(-p.shape[0] // split), *p.shape[1:]) if p.shape else (1,), round(p.element_bytes * widened))
        for p, split in zip(parameters, ranks, strict=True)
    ]
    update = whole_update(optimizer, kernels, shards, scaled=scaled, keep_gradients=keep_gradients, clipped=clipped)
    state = {shard: state_bytes(optimizer, kernels, shard) for shard in dict.fromkeys(shards)}
    return update, [state[shard] for shard in shards]


def with_scaled_update(trace: Trace, scale: float) -> Trace:
    """The same for an optimizer that the job makes itself: its operations and its state, times `scale`."""
    sequence, operations, storages = trace.sequence, trace.operations, trace.storages
    of_optimizer = sequence.phase == PHASES.index("optimizer")
    rows, row_of = np.unique(sequence.operation[of_optimizer], return_inverse=True)
    values = operations.values[rows]
    values[:, _SCALED] = np.ceil(values[:, _SCALED] * scale).astype(np.int64)
    operation = sequence.operation.copy()
    operation[of_optimizer] = len(operations) + row_of
    inside = np.append(of_optimizer, True)[np.where(storages.born < 0, len(of_optimizer), storages.born)]
    updated = inside & np.isin(storages.category, _UPDATED)
    size = np.where(updated, np.ceil(storages.size_bytes * scale).astype(np.int64), storages.size_bytes)
    return replace(
        trace,
        operations=operations.followed_by(replace(operations.take(rows), values=values)),
        sequence=replace(sequence, operation=operation),
        storages=replace(storages, size_bytes=size),
    )
