"""The ranks of a job as Megatron-LM runs it, composed from a recording of one device.

As gpuwise composes its own ranks (gpuwise.trace.parallel.ranks), where Megatron-LM does otherwise:

- stages have equally many blocks beside embedding and head, or count those as blocks;
- the layer of queries, keys and values is laid out head by head;
- replicas add up their gradients in half precision, once a step and after backward, also beside tensor parallelism;
- the first and the last stage add up the gradient of the embedding they share;
- Adam updates fp32 copies of the parameters.

What trainers do otherwise than each other is in megatron_trainer.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from benchmarks.support.megatron_trainer import Trainer
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication, group_along
from gpuwise.trace.parallel.pipeline import in_flight
from gpuwise.trace.parallel.ranks import RankStep, unequal_ranks
from gpuwise.trace.parallel.stage import stage_step, with_in_flight
from gpuwise.trace.parallel.tensor import tensor_parallel
from gpuwise.trace.tables import BEFORE, CATEGORIES, KINDS, OperationRow, OperationValues
from gpuwise.trace.update.edit import END, Edit
from gpuwise.trace.update.rows import UpdateRows, launches_of_many

_GRADIENT, _STREAMED = CATEGORIES.index("gradient"), KINDS.index("elementwise")
# Bytes read and written a parameter by the kernels of an update, each one over many tensors (apex's multi_tensor_apply), taken
# to move bytes as elementwise kernels do, and bytes of state a parameter.
# Megatron-LM (megatron/optimizer/optimizer.py, MixedPrecisionOptimizer, of 2022): gradients become fp32, are unscaled and
# checked, their norm is taken, they are clipped; Adam reads gradient, parameter and two moments and writes the last three;
# parameters become fp16 again.
_UPDATE = (
    ("copy of gradients", 2, 4),
    ("unscale", 4, 4),
    ("norm", 4, 0),
    ("clip", 4, 4),
    ("Adam", 16, 12),
    ("copy of parameters", 4, 2),
)
_STATE_BYTES = 16  # a parameter's fp32 copy and gradient, and two moments
# DeepSpeed without ZeRO (deepspeed/runtime/fp16/fused_optimizer.py, step_fused_adam): gradients are checked and copied into one
# tensor, their norm is taken; one kernel unscales, clips, updates and writes parameters in 16 bits. That runs with
# fused_adam_legacy alone, which is not its default: chosen because the steps of one machine that are not kept out take 20 ms
# beyond their micro-batches for a billion parameters, which is 36 bytes a parameter at 1.8 TB/s.
_FUSED_UPDATE = (("check", 2, 0), ("copy of gradients", 2, 2), ("norm", 2, 0), ("Adam", 14, 14))
_FUSED_STATE_BYTES = 14  # a parameter's fp32 copy, two moments, and the copy of its gradient
_HALF, _SINGLE = 2, 4


def megatron_ranks(whole: Trace, strategy: Strategy, *, trainer: Trainer) -> tuple[RankStep, ...]:
    """The steps of the ranks that differ.

    Arguments:
        whole: the step on one device, in 16 bits.
        strategy: its mesh has tp, pp and dp_replicate.
    """
    blocks, stages = len(whole.header.blocks), strategy.mesh.pp * strategy.parallelism.stages_per_rank
    first = trainer.first_blocks(blocks, stages)
    whole.once(("stages", stages), lambda: first)  # in place of stages that take equally long
    split = strategy.mesh.tp * strategy.mesh.pp > 1
    return tuple(
        RankStep(
            name,
            *_composed(whole, strategy, rank, trainer=trainer),
            model_flops=whole.model_flops if split else None,
        )
        for rank, name in unequal_ranks(strategy).items()
    )


def _composed(trace: Trace, strategy: Strategy, rank: int, *, trainer: Trainer) -> tuple[Trace, Communication]:
    mesh, collectives, received_bytes = strategy.mesh, list[Collective](), 0
    element_bytes = _SINGLE if trainer.fp32_gradients else _HALF
    embedding_bytes = element_bytes * prod(trace.header.gradient_shapes[0]) // mesh.tp  # the model's first parameter
    if mesh.pp > 1:
        trace, sends, received_bytes = stage_step(trace, strategy, rank)
        collectives += [_scattered(send, mesh.tp) for send in sends]
    if mesh.tp > 1:
        trace, sums = tensor_parallel(trace, strategy, by_heads=True)
        collectives += _overlapped(sums, strategy, len(trace.header.blocks)) if trainer.of_2022 else sums
    if mesh.pp > 1:
        # Megatron-LM allocates what it receives for a micro-batch when that comes, PyTorch's schedules for all at the start.
        alive = received_bytes * in_flight(strategy, rank) / strategy.accumulation
        trace = with_in_flight(trace, strategy, rank, received_bytes=int(alive))
    elements = [prod(shape) for shape in trace.header.gradient_shapes]
    shares = mesh.dp_replicate if trainer.sharded_state else 1
    trace = with_megatron_update(
        trace,
        strategy,
        [-(-count // shares) for count in elements],
        fp32_gradients=sum(elements) if trainer.fp32_gradients else 0,
        fused=trainer.fused_update,
    )
    gradient_bytes = element_bytes * sum(elements)
    replicas = group_along(mesh, "dp_replicate")
    collectives.append(_in_update(replicas, gradient_bytes))
    if trainer.fp32_gradients and trainer.sharded_state:
        # DeepSpeed's BF16_Optimizer gathers what each replica has updated; ZeRO stage 1 sends no more than an all-reduce does.
        collectives.append(Collective("all_gather", replicas, _HALF * sum(elements), 1, in_update=True))
    if mesh.pp > 1 and rank in (0, mesh.pp - 1):
        ends = group_along(mesh, "pp")
        # Ranks of a group are evenly spaced through a machine or machines; half a pipeline apart takes the same links.
        collectives.append(_in_update(RankGroup("pp", 2, ends.stride * (mesh.pp // 2)), embedding_bytes))
    return replace(trace, header=replace(trace.header, strategy=strategy)), Communication().and_also(*collectives)


def _scattered(send: Collective, parts: int) -> Collective:
    """A send of one part of a tensor; the receiving ranks gather the parts, whose time is left out."""
    return replace(send, payload_bytes=send.payload_bytes // parts)


def _overlapped(sums: tuple[Collective, ...], strategy: Strategy, blocks: int) -> list[Collective]:
    """The collectives of tensor parallelism, one sum of each of a block's two pairs of layers beside the computation."""
    operation = "reduce_scatter" if strategy.parallelism.sequence_parallel else "all_reduce"
    hidden, result = 2 * blocks * strategy.accumulation, []
    for collective in sums:
        if collective.operation == operation and collective.calls > hidden:
            size_bytes = collective.payload_bytes * hidden // collective.calls
            result.append(replace(collective, payload_bytes=size_bytes, calls=hidden, overlaps="step"))
            rest = collective.payload_bytes - size_bytes
            collective = replace(collective, payload_bytes=rest, calls=collective.calls - hidden)
        result.append(collective)
    return result


def _in_update(group: RankGroup, size_bytes: int) -> Collective:
    return Collective("all_reduce", group, size_bytes, 1, in_update=True)


def with_megatron_update(
    trace: Trace, strategy: Strategy, elements: list[int], *, fp32_gradients: int = 0, fused: bool = False
) -> Trace:
    """The step with an update of these tensors' fp32 copies, whose gradients stay in place.

    Arguments:
        elements: number of elements of each parameter that the rank updates.
        fp32_gradients: elements of gradients that each micro-batch adds to copies in fp32; none by default. The time of all
            micro-batches is counted with the update.
        fused: whether one kernel does most of it. Default False.
    """
    edit, update, total = Edit(trace), UpdateRows(), sum(elements)
    if fp32_gradients:
        added, tensors = strategy.accumulation * fp32_gradients, strategy.accumulation * len(elements)
        values = OperationValues(
            flops=added, bytes_read=(_HALF + _SINGLE) * added, bytes_written=_SINGLE * added, kernels=tensors
        )
        update.rows.append(OperationRow("add to gradients", _STREAMED, "float32", values))
        edit.add(_SINGLE * fp32_gradients, "optimizer_state", 0, BEFORE, END)
    for name, read, written in _FUSED_UPDATE if fused else _UPDATE:
        values = OperationValues(
            flops=total, bytes_read=read * total, bytes_written=written * total, kernels=launches_of_many(elements)
        )
        update.rows.append(OperationRow(name, _STREAMED, "float32", values))
    edit.insert_update(update)
    edit.add((_FUSED_STATE_BYTES if fused else _STATE_BYTES) * total, "optimizer_state", 0, BEFORE, END)
    result = edit.result(strategy, gradient_shapes=trace.header.gradient_shapes)
    gradient = result.storages.category == _GRADIENT
    storages = replace(
        result.storages,
        born=np.where(gradient, BEFORE, result.storages.born),
        died=np.where(gradient, len(result.sequence), result.storages.died),
    )
    return replace(result, storages=storages)
