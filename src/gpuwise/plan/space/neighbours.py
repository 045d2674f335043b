"""Strategies beside a good one, along the axes that arrays do not have: other pipeline schedules, experts, parts of sequences.

They are forecast exactly, from the best of what is composed; see gpuwise.plan.compose.verify.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy import Parallelism, Strategy, check_techniques
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES, V_SCHEDULES

FACTORS = (2, 4, 8)  # by which one axis gives devices to another


def neighbours(strategy: Strategy, *, experts: int = 0, pinned: Collection[str] = ()) -> list[Strategy]:
    """The legal neighbours of a strategy on as many devices, with its global batch.

    Arguments:
        experts: of each block of the model; 0 (default) for a model without.
        pinned: fields of the strategy that stay as they are.
    """
    if strategy.mode != "train":
        return []
    others = [*_schedules(strategy), *_expert_parallel(strategy, experts), *_context_parallel(strategy), *_larger(strategy)]
    kept = [other for other in dict.fromkeys(others) if all(getattr(other, name) == getattr(strategy, name) for name in pinned)]
    return [other for other in kept if other != strategy and _is_legal(other)]


def _schedules(strategy: Strategy) -> Iterator[Strategy]:
    """Schedules that divide backward and leave less idle; parameters stay gathered under them. Beside an interleaved one, all
    forwards first, which hides more of its sends in more memory."""
    mesh, parallelism = strategy.mesh, strategy.parallelism
    if mesh.pp == 1:
        return
    if parallelism.pipeline_schedule == "interleaved-1f1b":
        yield strategy.but(parallelism=replace(parallelism, pipeline_schedule="looped-bfs"))
    shard = parallelism.shard
    if shard == "parameters" and mesh.dp_shard * mesh.cp > 1:
        shard = "gradients"
    for schedule in SPLIT_SCHEDULES:
        stages = 2 if schedule in V_SCHEDULES else max(2, parallelism.stages_per_rank)
        yield strategy.but(parallelism=replace(parallelism, shard=shard, pipeline_schedule=schedule, stages_per_rank=stages))


def _expert_parallel(strategy: Strategy, experts: int) -> Iterator[Strategy]:
    """Experts divided among the ranks that split the parameters."""
    mesh = strategy.mesh
    for degree in range(2, experts + 1):
        if experts % degree == 0 and mesh.dp_shard % degree == 0:
            yield strategy.but(mesh=replace(mesh, ep=degree))


def _context_parallel(strategy: Strategy) -> Iterator[Strategy]:
    """Sequences divided among ranks that had samples of their own, or parts of layers, where one sample crowds a rank."""
    mesh = strategy.mesh
    crowded = strategy.micro_batch == 1 and (strategy.recompute != "none" or mesh.tp > 1)
    if not crowded or mesh.cp > 1 or mesh.ep > 1:
        return
    for factor in FACTORS:
        for recompute in dict.fromkeys((strategy.recompute, "none")):
            if mesh.dp_shard % factor == 0:
                yield strategy.but(
                    mesh=replace(mesh, dp_shard=mesh.dp_shard // factor, cp=factor),
                    accumulation=strategy.accumulation * factor,
                    recompute=recompute,
                )
            if mesh.tp % factor == 0:
                yield strategy.but(
                    mesh=replace(mesh, tp=mesh.tp // factor, cp=factor), parallelism=_of_tensor(strategy, mesh.tp // factor)
                ).but(recompute=recompute)


def _larger(strategy: Strategy) -> Iterator[Strategy]:
    """More memory used where an axis that arrays do not have left some; of their own axes they know the best."""
    mesh = strategy.mesh
    split = mesh.pp > 1 and strategy.parallelism.pipeline_schedule in SPLIT_SCHEDULES
    if not split and mesh.cp == mesh.ep == 1:
        return
    yield strategy.but(recompute="none")
    if strategy.accumulation % 2 == 0:
        yield strategy.but(micro_batch=2 * strategy.micro_batch, accumulation=strategy.accumulation // 2)


def _of_tensor(strategy: Strategy, tp: int) -> Parallelism:
    """The parallelism of a strategy with another degree of tp."""
    return strategy.parallelism if tp > 1 else replace(strategy.parallelism, sequence_parallel=False, loss_parallel=False)


def _is_legal(strategy: Strategy) -> bool:
    try:
        check_techniques(strategy)
    except (InputError, UnsupportedError):
        return False
    return True
