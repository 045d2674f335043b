"""The ranks of a mesh whose steps differ, each composed from the step of a single device.

In the order in which gpuwise.runtime.parallel applies them: stage, experts, tensor and context parallelism, replicas or shards.
Composition by rules, not recordings: a search can afford it for thousands of strategies, and presets need no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.notes import Note
from gpuwise.notes.parallel import autocast_without_shards, composed_rank
from gpuwise.strategy import Strategy, check_techniques
from gpuwise.trace.header import Header
from gpuwise.trace.parallel.communication import Collective, Communication, group_along
from gpuwise.trace.parallel.context import context_parallel
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.experts import expert_parallel
from gpuwise.trace.parallel.launches import HostLaunches
from gpuwise.trace.parallel.pipeline import check_stages, in_flight
from gpuwise.trace.parallel.replicate import replicated
from gpuwise.trace.parallel.shard import sharded
from gpuwise.trace.parallel.shard_stage import sharded_stage
from gpuwise.trace.parallel.stage import stage_starts, stage_step, with_in_flight
from gpuwise.trace.parallel.tensor import tensor_parallel
from gpuwise.trace.parallel.variant import is_sharded
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.sharded import with_scaled_update, with_sharded_update


@dataclass(frozen=True)
class RankStep:
    """One rank's step.

    Attributes:
        name: of its pipeline stages: "first", "middle", "last"; "" without a pipeline.
        trace: what it runs.
        communication: its collectives.
        model_flops: model operations of a step on the samples of one data-parallel rank, over all ranks that share it; None
            where each rank runs the whole model.
        recorded: the step with its collectives and streams, where it was recorded on the mesh; None (default): composed.
    """

    name: str
    trace: Trace
    communication: Communication
    model_flops: int | None = None
    recorded: Trace | None = None


def rank_steps(step: Callable[[int], Trace], strategy: Strategy) -> tuple[RankStep, ...]:
    """The steps of the ranks that differ: of a pipeline its first rank, the one behind it and the last, else one.

    Arguments:
        step: the step of `recorded_as(strategy)` on one device, on a sequence divided by so many.

    Raises the errors of check_techniques; InputError where an axis does not divide what it splits.
    """
    mesh, whole = strategy.mesh, step(1)
    check_techniques(strategy, whole.header.step_facts)
    if strategy.mode == "infer" or not splits_layers(strategy):
        return (RankStep("", *data_parallel(whole, strategy)),)
    _check_mesh(whole.header, strategy)
    part = step(mesh.cp) if mesh.cp > 1 else whole
    return tuple(
        RankStep(name, *_composed(part, whole, strategy, rank), model_flops=whole.model_flops)
        for rank, name in unequal_ranks(strategy).items()
    )


def splits_layers(strategy: Strategy) -> bool:
    """Whether ranks run parts of the model's layers, sequences or stages."""
    mesh = strategy.mesh
    return mesh.tp * mesh.pp * mesh.cp * mesh.ep > 1


def unequal_ranks(strategy: Strategy) -> dict[int, str]:
    """The positions along pp of ranks that differ, with their names."""
    last = strategy.mesh.pp - 1
    if last == 0:
        return {0: ""}
    return {0: "first", last: "last"} if last == 1 else {0: "first", 1: "middle", last: "last"}


def _composed(trace: Trace, whole: Trace, strategy: Strategy, rank: int) -> tuple[Trace, Communication]:
    """The step of a rank along pp, of the part of each sequence that it has. whole: on whole sequences."""
    mesh, collectives = strategy.mesh, list[Collective]()

    def collect(result: tuple[Trace, tuple[Collective, ...]]) -> Trace:
        collectives.extend(result[1])
        return result[0]

    received_bytes = 0
    if mesh.pp > 1:
        trace, sends, received_bytes = stage_step(trace, strategy, rank, starts=stage_starts(whole, strategy))
        collectives += sends
    if mesh.ep > 1:
        trace = collect(expert_parallel(trace, strategy))
    if mesh.tp > 1:
        trace = collect(tensor_parallel(trace, strategy))
    if mesh.cp > 1:  # of the stage's blocks and of this rank's heads
        trace = collect(context_parallel(trace, strategy))
    if mesh.pp > 1:
        trace = with_in_flight(trace, strategy, rank, received_bytes=received_bytes)
    trace, communication = _data_parallel(trace, strategy, rank)
    notes: list[Note] = [*trace.header.assumption_notes, composed_rank(axes=str(mesh))]
    if strategy.precision.startswith("amp-") and mesh.data_parallel * mesh.cp == 1:
        notes.append(autocast_without_shards(precision=strategy.precision, axes=str(mesh)))
    head, sizes = replace(trace.header, strategy=strategy, assumption_notes=tuple(notes)), whole.header.sizes
    trace = replace(trace, header=replace(head, sizes=sizes, units_per_sample=whole.header.units_per_sample))
    return trace, communication.and_also(*collectives)


def _data_parallel(trace: Trace, strategy: Strategy, rank: int) -> tuple[Trace, Communication]:
    """The step with its update, and the exchange of gradients."""
    if is_sharded(strategy):
        if strategy.mesh.pp > 1:
            return sharded_stage(trace, strategy, in_flight=in_flight(strategy, rank))
        return sharded(trace, strategy)
    optimizer = strategy.optimizer or trace.header.strategy.optimizer
    if optimizer is None:
        share = 1 / (strategy.mesh.tp * strategy.mesh.pp)
        trace = with_scaled_update(trace, share)
    else:
        trace = with_sharded_update(trace, strategy, optimizer, ranks=np.ones(len(trace.modules), dtype=np.int64))
    if strategy.mesh.dp_replicate == 1:
        return trace, Communication()
    trace, communication = replicated(trace, group_along(strategy.mesh, "dp_replicate"), of_stage=strategy.mesh.pp > 1)
    if strategy.mesh.pp > 1:  # fully_shard over one rank copies more and casts less: together they take about as long
        communication = replace(communication, launches=HostLaunches())
    return trace, communication


def _check_mesh(header: Header, strategy: Strategy) -> None:
    """Raises InputError where an axis does not divide the sequence or the blocks."""
    mesh, length = strategy.mesh, header.sizes.get("seq_len")
    if not header.blocks:
        raise UnsupportedError(
            f"{header.job} has no repeated blocks, which tensor, pipeline and context parallelism work on.",
            ["use --mesh dp=N or dp_shard=N"],
        )
    divides = mesh.cp * (mesh.tp if strategy.parallelism.sequence_parallel else 1)
    if divides > 1 and length is None:
        raise UnsupportedError(f"{header.job} has no sequence that cp could split.", ["leave out cp of --mesh"])
    if length is not None and length % divides:
        raise InputError(
            f"{divides} devices do not divide a sequence of {length:,}.",
            [f"--seq-len {length // divides * divides or divides}"],
        )
    check_stages(strategy, len(header.blocks))
