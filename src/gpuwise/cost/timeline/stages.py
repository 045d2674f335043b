"""The ranks of a pipeline together: what one of them waits for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.cost.rank_time import RankTime
from gpuwise.cost.timeline.pipeline import PipelineStep, StageTime, finish_s
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class PipelineWait:
    """What a pipeline adds to the time of its slowest rank. Both are 0 without a pipeline.

    Attributes:
        idle_s: seconds without input, were sends immediate.
        send_s: seconds that sends between stages add.
    """

    idle_s: float = 0.0
    send_s: float = 0.0


def pipeline_step(ranks: Sequence[RankTime], strategy: Strategy) -> PipelineStep:
    """The pipeline of a strategy.

    Arguments:
        ranks: the first rank, one for all in the middle, and the last; or one for all.

    Stages of a rank are taken as equally long, and gradients of inputs and of weights as half of backward each: each is one
    product for every product of forward. What is recomputed belongs to the former. Communication that each micro-batch waits
    for is divided among the phases by their length.
    """
    parallelism, count = strategy.parallelism, strategy.mesh.pp
    of_ranks = [_stage_time(rank, parallelism.stages_per_rank) for rank in (ranks[0], ranks[len(ranks) // 2], ranks[-1])]
    times = [of_ranks[0], *[of_ranks[1]] * (count - 2), of_ranks[2]]
    send_s = max((rank.send.seconds for rank in ranks if rank.send is not None), default=0.0)
    step = PipelineStep(parallelism, count, strategy.accumulation, (), send_s)
    stages = range(count * parallelism.stages_per_rank)
    return replace(step, stages=tuple(times[step.rank_of(stage)] for stage in stages))


def pipeline_wait(slowest: RankTime, ranks: Sequence[RankTime], strategy: Strategy) -> PipelineWait:
    """What the slowest rank waits for the others. Arguments as for pipeline_step."""
    step = pipeline_step(ranks, strategy)
    after_s = [rank.busy_s - rank.micro_batches_s for rank in (ranks[0], ranks[len(ranks) // 2], ranks[-1])]
    after_s = [after_s[0], *[after_s[1]] * (step.ranks - 2), after_s[2]]
    whole_s, immediate_s = (
        max(end_s + rest_s for end_s, rest_s in zip(finish_s(of), after_s, strict=True))
        for of in (step, replace(step, send_s=0.0))
    )
    return PipelineWait(max(0.0, immediate_s - slowest.busy_s), max(0.0, whole_s - immediate_s))


def _stage_time(rank: RankTime, stages: int) -> StageTime:
    seconds, each = rank.phase_s, rank.micro_batches * stages
    alone_s = seconds["forward"] + seconds["backward"] + seconds["recompute"]
    longer = rank.micro_batches_s / alone_s / each if alone_s else 0.0
    half_s = seconds["backward"] / 2
    return StageTime(longer * seconds["forward"], longer * (half_s + seconds["recompute"]), longer * half_s)
