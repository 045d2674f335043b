"""The memory of the steps of a mesh at all variants and micro-batches, composed from a BlockTable.

Live bytes are counted where they can be most: in forward and backward, in the first and the last block of a rank, before its
blocks and behind them. gpuwise.trace.memory counts those of one step at each of its positions. Both agree within 0.5 %, but for
1 or 2 % of small models at one sample.
"""

from __future__ import annotations

import numpy as np

from gpuwise.cost.memory.device import SEGMENT_BYTES, blas_workspace_bytes, outside_bytes
from gpuwise.plan.compose.lives import Lives
from gpuwise.plan.compose.moments import moments
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS
from gpuwise.plan.compose.shard_buffers import buffers_of
from gpuwise.plan.compose.steps import MeshSteps
from gpuwise.strategy.pipeline import stages_of_rank
from gpuwise.trace.parallel.variant import shard_ranks


def device_bytes(steps: MeshSteps, *, limit_bytes: float = np.inf) -> np.ndarray:
    """Bytes that the rank needs that needs most, as gpuwise.cost.memory counts them. Shape (variants, micro-batches).

    Arguments:
        limit_bytes: of interest: where parameters and state alone exceed it, only those are counted. Default: no limit.
    """
    tp, table = steps.strategy.mesh.tp, steps.table
    freed = steps.sharded and steps.strategy.mesh.pp == 1
    entries = [table.lives(variant, tp=tp, sharded=steps.sharded, freed=freed) for variant in steps.variants]
    need = [_rank_bytes(steps, entries, number, limit_bytes=limit_bytes) for number in range(len(steps.ranks.positions))]
    trace = table.job.rows(steps.variants[0], tp=tp, sharded=steps.sharded).low.trace
    workspace = 2 * blas_workspace_bytes(trace, table.chip, table.parameters)
    allocated, moving = np.stack([one[0] for one in need]) + workspace, np.stack([one[1] for one in need]) + workspace
    reserved = allocated + moving * (table.parameters.reserved_per_moving_byte - 1)
    reserved = np.ceil(reserved / SEGMENT_BYTES) * SEGMENT_BYTES
    of_largest = np.take_along_axis(reserved, allocated.argmax(axis=0)[None], 0)[0]
    result: np.ndarray = of_largest + outside_bytes(steps.cluster, table.parameters)
    return result


def _rank_bytes(steps: MeshSteps, entries: list[Lives], number: int, *, limit_bytes: float) -> tuple[np.ndarray, np.ndarray]:
    """Live bytes of one rank at their peak, and those of activations and temporaries there. Shape (variants, micro-batches)."""
    lasting = _lasting_bytes(steps, entries, number)
    if (lasting > limit_bytes).all():
        return lasting, np.zeros(lasting.shape)
    weights, accumulation = steps.ranks.weights[number], steps.accumulation
    entries = [entry.of_rank(weights) for entry in entries]
    saved, kept, gathered = (np.stack([getattr(entry, name) for entry in entries]) for name in ("saved", "kept", "gathered"))
    gradients = entries[0].gradients
    peaks = np.stack([entry.peaks for entry in entries])
    buffers = buffers_of(steps, number, gradients)
    pipelined = steps.strategy.mesh.pp > 1
    flying = steps.ranks.in_flight(accumulation)[number] if pipelined else np.ones(len(accumulation))
    later = np.maximum(1, np.minimum(flying, accumulation - 1))
    totals, moving = [], []
    for micro_step in (0, 1):
        runs = (accumulation > 1) if micro_step else np.ones(len(accumulation), dtype=bool)
        further = (later if micro_step else flying) - 1
        others, other_buffers = ((part @ weights) * further for part in (saved, gathered))
        for moment in moments(weights):
            own = float(micro_step == 0 and not buffers.keeps_gradients) if not buffers.frees_gradients else 1.0
            key = (moment.section, moment.turn, micro_step, int(moment.before.any()), int(moment.after.any()))
            plain = peaks[:, :, *key, 0]
            peak = peaks[:, :, *key, int(own)]
            activations = (saved if moment.turn else kept) @ moment.before + others
            added, added_moving = buffers.at(moment, micro_step)
            totals.append(np.where(runs, activations + peak + added, 0.0))
            in_buffers = gathered @ moment.before + other_buffers
            moving.append(np.where(runs, activations - in_buffers + plain + added_moving, 0.0))
    total, of_moving = np.stack(totals), np.stack(moving)
    most = total.argmax(axis=0)[None]
    return lasting + np.take_along_axis(total, most, 0)[0], np.take_along_axis(of_moving, most, 0)[0]


def _lasting_bytes(steps: MeshSteps, entries: list[Lives], number: int) -> np.ndarray:
    """Parameters, the optimizer's state, batches and what a stage receives. Shape (variants, micro-batches)."""
    weights, strategy = steps.ranks.weights[number], steps.strategy
    of_rank, update = steps.table.holdings(tp=strategy.mesh.tp, sharded=steps.sharded)
    parameter, gradient = (float(one[0]) for one in of_rank.of_ranks(weights[None]))
    size_bytes, widened = steps.table.element_bytes(sharded=steps.sharded)
    ranks = shard_ranks(strategy)
    state = float(update.state_bytes.at(np.asarray(gradient / size_bytes / ranks)))
    edges = weights[BEFORE_BLOCKS] or weights[AFTER_BLOCKS]
    inputs = np.stack([entry.inputs for entry in entries]) * float(edges)
    result: np.ndarray = parameter * widened / ranks + state + inputs
    if strategy.mesh.pp > 1:
        stages = len(stages_of_rank(strategy.parallelism, ranks=strategy.mesh.pp, rank=steps.ranks.positions[number]))
        onward = np.stack([entry.received_forward for entry in entries]) * (stages - weights[BEFORE_BLOCKS])
        back = np.stack([entry.received_backward for entry in entries]) * (stages - weights[AFTER_BLOCKS])
        result = result + (onward + back) * steps.accumulation
    return result
