"""The ranks of a job as Megatron-Core runs it, from the recorded step of one tensor- and expert-parallel rank.

Stages, schedules and attention over a divided sequence are gpuwise's own. Megatron-Core does otherwise in this:

- stages have equally many layers, where embedding and output layer count as one each
  (account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split);
- tensor-parallel ranks gather and scatter parts of the sequence, operands in the format of the product; beside the products
  where tp_comm_overlap is on. Operands are gathered again for the gradients of weights;
- experts' ranks are neighbours along tensor and data parallelism (expert_tensor_parallel_size is 1). Tokens go to their
  experts and back in 16 bits, to each expert. A fused dispatcher (DeepEP, HybridEP) sends a token to each rank once or, among
  machines, to one rank of each, which passes it on over NVLink in the meantime. Between machines it reaches the speed of a
  ring, which NCCL's all-to-all does not: 90 and 61 GB/s over two and four machines of H100s (deepseek-ai/DeepEP, README.md),
  where rings are forecast at 90 and 61. Over NVLink 5 it reaches 643 to 726, where NCCL's all-to-all is forecast at 608;
- replicas share the state (distributed optimizer): gradients in 16 bits are scattered beside the last backward pass,
  parameters are gathered beside the next step, in the format of products; or they share parameters, too (Megatron FSDP),
  gathered in each pass and scattered in each micro-batch beside the computation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from benchmarks.support.bridge_kernels import with_core_kernels
from benchmarks.support.bridge_precision import LowPrecision
from benchmarks.support.bridge_shape import DecoderShape
from benchmarks.support.megatron_step import with_megatron_update
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Collective, Communication, group_along
from gpuwise.trace.parallel.context import context_parallel
from gpuwise.trace.parallel.ranks import RankStep, unequal_ranks
from gpuwise.trace.parallel.stage import stage_step

_HALF = 2


@dataclass(frozen=True)
class CoreOptions:
    """How Megatron-Core communicates.

    Attributes:
        low: None multiplies in 16 bits.
        tp_overlap: whether tensor parallelism's communication runs beside products.
        expert_overlap: whether tokens travel beside another micro-batch's computation.
        fused_dispatch: whether a token goes once to each rank or machine.
        domain: devices that NVLink joins.
        shards: whether replicas share parameters, too (Megatron FSDP).
    """

    low: LowPrecision | None
    tp_overlap: bool
    expert_overlap: bool
    fused_dispatch: bool
    domain: int
    shards: bool = False


def core_ranks(whole: Trace, shape: DecoderShape, strategy: Strategy, options: CoreOptions) -> tuple[RankStep, ...]:
    """The steps of the ranks that differ.

    Arguments:
        whole: the step of one rank along tp, cp and ep, with all layers. Its blocks are those of `shape`.
        strategy: its mesh has tp, pp, cp, dp_shard and ep.
    """
    stages = strategy.mesh.pp * strategy.parallelism.stages_per_rank
    each = (len(whole.header.blocks) + 2) // stages
    starts = tuple(max(0, stage * each - 1) for stage in range(stages))
    if strategy.mesh.cp > 1:
        whole = context_parallel(whole, strategy)[0]  # keys and values travel beside attention
    if strategy.mesh.pp > 1:
        whole.once(("stages", stages), lambda: starts)
    model_flops = whole.model_flops * strategy.mesh.tp * strategy.mesh.cp
    return tuple(
        RankStep(name, *_rank(whole, shape, strategy, options, rank), model_flops=model_flops)
        for rank, name in unequal_ranks(strategy).items()
    )


def _rank(
    trace: Trace, shape: DecoderShape, strategy: Strategy, options: CoreOptions, rank: int
) -> tuple[Trace, Communication]:
    mesh, sends = strategy.mesh, tuple[Collective, ...]()
    if mesh.pp > 1:
        trace, sends, _ = stage_step(trace, strategy, rank)
    shapes = trace.header.gradient_shapes
    experts = sum(prod(one) for one in shapes if len(one) == 3)
    others = sum(prod(one) for one in shapes) - experts
    replicas, expert_replicas = _replicas(strategy)
    tokens = trace.header.sizes["seq_len"] * strategy.micro_batch
    blocks = len(trace.header.blocks)
    trace = with_core_kernels(trace, options.low, tp=mesh.tp)
    trace = with_megatron_update(trace, strategy, [-(-others // replicas.ranks), -(-experts // expert_replicas.ranks)])
    collectives = [
        *sends,
        *_tensor(shape, strategy, options, tokens=tokens, blocks=blocks),
        *_tokens(shape, strategy, options, tokens=tokens, blocks=blocks),
        *_replicated(replicas, others, options, micro_batches=strategy.accumulation, blocks=blocks),
        *_replicated(expert_replicas, experts, options, micro_batches=strategy.accumulation, blocks=blocks),
    ]
    return replace(trace, header=replace(trace.header, strategy=strategy)), Communication().and_also(*collectives)


def _replicas(strategy: Strategy) -> tuple[RankGroup, RankGroup]:
    """The ranks that hold the same layers, and those that hold the same experts."""
    mesh = strategy.mesh
    same_stage = mesh.devices // mesh.pp
    return (
        RankGroup("dp_shard", same_stage // mesh.tp, mesh.tp),
        RankGroup("dp_shard/ep", max(1, same_stage // mesh.ep), mesh.ep),
    )


def _replicated(group: RankGroup, elements: int, options: CoreOptions, *, micro_batches: int, blocks: int) -> list[Collective]:
    """Once a step or, of shards, parameters in each pass of each micro-batch and gradients in each micro-batch."""
    weight_bytes = _HALF if options.low is None or options.low.bytes_per_number < 1 else 1
    if options.shards:
        calls = micro_batches * blocks
        return [
            Collective("reduce_scatter", group, _HALF * elements * micro_batches, calls, overlaps="step"),
            Collective("all_gather", group, 2 * weight_bytes * elements * micro_batches, 2 * calls, overlaps="step"),
        ]
    return [
        Collective("reduce_scatter", group, _HALF * elements, 1, overlaps="last backward"),
        Collective("all_gather", group, weight_bytes * elements, 1, overlaps="step"),
    ]


def _tensor(shape: DecoderShape, strategy: Strategy, options: CoreOptions, *, tokens: int, blocks: int) -> list[Collective]:
    """In forward two gathers and two scatters a block, in backward two more gathers; one of each where experts stand."""
    if strategy.mesh.tp == 1:
        return []
    pairs, group = 1 if shape.experts else 2, group_along(strategy.mesh, "tp")
    overlaps = "step" if options.tp_overlap else "nothing"
    times, numbers = blocks * strategy.accumulation * pairs, tokens * shape.width
    operand_bytes = options.low.bytes_per_number if options.low else _HALF
    return [
        Collective("all_gather", group, int(3 * times * numbers * operand_bytes), 3 * times, overlaps=overlaps),
        Collective("reduce_scatter", group, 2 * times * numbers * _HALF, 2 * times, overlaps=overlaps),
    ]


def _tokens(shape: DecoderShape, strategy: Strategy, options: CoreOptions, *, tokens: int, blocks: int) -> list[Collective]:
    """Tokens on their way to experts and back, in forward and in backward."""
    experts, ep = shape.experts, strategy.mesh.ep
    if experts is None or ep == 1:
        return []
    group, copies, operation = RankGroup("ep", ep, 1), float(experts.chosen), "all_to_all"
    if options.fused_dispatch:
        if ep > options.domain:
            group, operation = RankGroup("ep", ep // options.domain, options.domain), "all_gather"
        copies = group.ranks * (1 - (1 - 1 / group.ranks) ** experts.chosen)  # those that one of so many experts leads to
    calls = 4 * blocks * strategy.accumulation
    size_bytes = int(tokens // strategy.mesh.tp * copies * shape.width * _HALF)
    overlaps = "step" if options.expert_overlap else "nothing"
    return [Collective(operation, group, calls * size_bytes, calls, overlaps=overlaps)]
