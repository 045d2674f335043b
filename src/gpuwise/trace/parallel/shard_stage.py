"""A pipeline stage whose parameters are split: fully_shard under a schedule of torch.distributed.pipelining.

The schedule neither frees parameters after a backward pass nor reduces gradients before the last one: a rank holds the whole
gradients of its stages, and at the end of a backward pass their whole parameters (backward_maybe_with_nosync in
torch/distributed/pipelining/stage.py, PyTorch 2.13).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.blocks import block_of_modules, spans
from gpuwise.trace.parallel.communication import Collective, Communication, group_along, shard_group
from gpuwise.trace.parallel.shard import REDUCED_BYTES, element_bytes
from gpuwise.trace.parallel.shard_traffic import copied_of_gathers
from gpuwise.trace.parallel.variant import ranks_of_modules, shard_ranks
from gpuwise.trace.tables import CATEGORIES, PHASES, Storages
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.sharded import with_scaled_update, with_sharded_update

_PARAMETER, _GRADIENT, _BUFFER = (CATEGORIES.index(name) for name in ("parameter", "gradient", "communication_buffer"))


def sharded_stage(trace: Trace, strategy: Strategy, *, in_flight: float) -> tuple[Trace, Communication]:
    """The trace of a rank whose stages are split, and what it communicates for that. The header keeps its strategy.

    Arguments:
        trace: of the stages, on one device.
        in_flight: micro-batches in flight. Parameters that are freed after forward are gathered for each of them, and
            again for each backward pass.
    """
    gathered_bytes, widened = element_bytes(strategy)
    ranks, of_modules = shard_ranks(strategy), ranks_of_modules(trace, strategy)
    optimizer = strategy.optimizer or trace.header.strategy.optimizer
    if optimizer is None:
        trace = with_scaled_update(trace, widened / ranks)
    else:
        trace = with_sharded_update(trace, strategy, optimizer, ranks=of_modules, widened=widened)
    sequence, storages = trace.sequence, trace.storages
    length = len(sequence)
    backward = np.flatnonzero(sequence.phase != PHASES.index("optimizer"))
    end = int(backward[-1]) if len(backward) else length - 1
    parameter, gradient = storages.category == _PARAMETER, storages.category == _GRADIENT
    parameter_bytes = int(storages.size_bytes[parameter].sum())
    gradient_bytes = storages.size_bytes[gradient]
    whole = REDUCED_BYTES / gathered_bytes if strategy.accumulation > 1 else 1.0
    size_bytes = storages.size_bytes.astype(np.float64)
    of_storage = of_modules[storages.module]
    size_bytes[parameter] *= widened / of_storage[parameter]
    size_bytes[gradient] *= whole
    died = storages.died.copy()
    died[gradient] = end
    reduced_bytes = int(gradient_bytes.sum() / gathered_bytes * REDUCED_BYTES)
    largest_unit = _largest_unit_bytes(trace, gradient) / gathered_bytes * REDUCED_BYTES
    # The buffers of the first reduction, less what the last operation frees before it, and the shards that all leave.
    freed_bytes = size_bytes[(storages.died == end) & ~gradient].sum()
    buffer_bytes = max(0.0, largest_unit * (1 + 1 / ranks) - freed_bytes)
    added = [*_gathered(trace, strategy, parameter, end), (buffer_bytes, _BUFFER, end, end)]
    shards_bytes = gradient_bytes * widened / of_storage[gradient]
    added += [(size, _GRADIENT, min(end + 1, length - 1), length) for size in shards_bytes.tolist()]
    sizes, categories, born, ends = np.array(added).T
    step = replace(
        trace,
        storages=Storages(
            np.ceil(np.concatenate([size_bytes, sizes])).astype(np.int64),
            np.concatenate([storages.category, categories]).astype(np.int8),
            np.concatenate([storages.module, np.zeros(len(added))]).astype(storages.module.dtype),
            np.concatenate([storages.born, born]).astype(storages.born.dtype),
            np.concatenate([died, ends]).astype(storages.died.dtype),
            np.concatenate([storages.stream, np.zeros(len(added))]).astype(storages.stream.dtype),
        ),
        operations=trace.operations.in_fp16() if strategy.precision == "amp-fp16" else trace.operations,
    )
    freed = strategy.parallelism.shard == "parameters"
    gathers = strategy.accumulation + in_flight if freed else 1
    units = len(trace.header.blocks) + 1
    sent = 0.5 if strategy.parallelism.compress_gradients else 1.0
    shards, replicas = shard_group(strategy.mesh), group_along(strategy.mesh, "dp_replicate")
    return step, Communication().and_also(
        Collective(
            "all_gather",
            shards,
            int(parameter_bytes * gathers),
            int(units * gathers),
            overlaps="step",
            copied_bytes=copied_of_gathers(parameter_bytes * gathers, shards.ranks),
        ),
        Collective(
            "reduce_scatter",
            shards,
            int(reduced_bytes * sent),
            units,
            overlaps="last backward",
            in_update=True,
            copied_bytes=int(gradient_bytes.sum() + reduced_bytes * sent),
        ),
        Collective("all_reduce", replicas, int(reduced_bytes * sent / ranks), units, overlaps="last backward", in_update=True),
    )


def _gathered(trace: Trace, strategy: Strategy, parameter: np.ndarray, end: int) -> list[tuple[float, int, int, int]]:
    """Bytes, category, birth and death of whole parameters. What is in no block stays whole.

    Blocks that are freed after forward are gathered again in backward, a block ahead, and stay until the next forward.
    """
    storages, block_of = trace.storages, block_of_modules(trace.modules, trace.header.blocks)
    units = block_of[storages.module[parameter]] + 1
    unit_bytes = np.bincount(units, weights=storages.size_bytes[parameter], minlength=len(trace.header.blocks) + 1).tolist()
    if strategy.parallelism.shard != "parameters":
        return [(sum(unit_bytes), _BUFFER, 0, end)]
    rows = [(unit_bytes[0], _BUFFER, 0, end)]
    for micro_step in (0, 1):
        forward = spans(trace, block_of, micro_step, ("forward",))
        backward = spans(trace, block_of, micro_step, ("backward", "recompute"))
        gathered_from = backward[-1][0]
        for first, last, block in sorted((*span, block) for block, span in backward.items() if block >= 0 and span[1] >= 0):
            begin = forward[block][0] if micro_step == 0 else forward[-1][0]
            rows.append((unit_bytes[block + 1], _BUFFER, begin, forward[block][1]))
            rows.append((unit_bytes[block + 1], _BUFFER, min(gathered_from, first), max(last, backward[-1][1])))
            gathered_from = first
    return rows


def _largest_unit_bytes(trace: Trace, gradient: np.ndarray) -> int:
    """Bytes of the gradients of the largest block, or of what is in none."""
    storages = trace.storages
    unit = block_of_modules(trace.modules, trace.header.blocks)[storages.module[gradient]] + 1
    return int(np.bincount(unit, weights=storages.size_bytes[gradient], minlength=1).max())
