"""The ranks of a pipeline together: what one of them waits for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.cost.rank_time import RankTime, slowest
from gpuwise.cost.timeline.orders import BACKWARD, FORWARD, INPUTS, Action
from gpuwise.cost.timeline.pipeline import PipelineStep, Placed, StageTime, finish_s, placed
from gpuwise.cost.timeline.shared_cores import UPDATE, computing_s, spans
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class PipelineWait:
    """What a pipeline adds to the time of its slowest rank. Both are 0 without a pipeline.

    Attributes:
        idle_s: seconds without input, were sends immediate.
        send_s: seconds that sends between stages add.
        busy_share: seconds that the rank is busy, relative to those beside ranks that are all busy at the same time; less than
            1 only where ranks share the cores of a CPU.
    """

    idle_s: float = 0.0
    send_s: float = 0.0
    busy_share: float = 1.0


def pipeline_step(ranks: Sequence[RankTime], strategy: Strategy, cluster: Cluster) -> PipelineStep:
    """The pipeline of a strategy.

    Arguments:
        ranks: the first rank, one for all in the middle, and the last; or one for all.
        cluster: the devices.

    Stages of a rank are taken as equally long, and gradients of inputs and of weights as half of backward each: each is one
    product for every product of forward. What is recomputed belongs to the former. Communication that each micro-batch waits
    for is divided among the phases by their length, but of recorded ranks, whose streams show what waits for it.
    """
    parallelism, count = strategy.parallelism, strategy.mesh.pp
    each = [ranks[0], *[ranks[len(ranks) // 2]] * (count - 2), ranks[-1]]
    times = [_stage_time(rank, parallelism.stages_per_rank) for rank in each]
    send_s = max((rank.send.seconds for rank in ranks if rank.send is not None), default=0.0)
    after_s = tuple(rank.busy_s - rank.micro_batches_s for rank in each)
    at_once = cluster.shared_cores and count * cluster.shared_cores / cluster.devices
    step = PipelineStep(parallelism, count, strategy.accumulation, (), send_s, after_s=after_s, at_once=at_once)
    homes = [step.rank_of(stage) for stage in range(count * parallelism.stages_per_rank)]
    waits_s = {
        Action(part, stage, number): wait_s / parallelism.stages_per_rank
        for stage, home in enumerate(homes)
        if (waits := each[home].waits) is not None
        for part, of_part in ((FORWARD, waits.forward_s), (BACKWARD, waits.backward_s), (INPUTS, waits.backward_s))
        for number, wait_s in enumerate(of_part)
    }
    return replace(step, stages=tuple(times[home] for home in homes), waits_s=waits_s)


def pipeline_wait(ranks: Sequence[RankTime], strategy: Strategy, cluster: Cluster) -> PipelineWait:
    """What the slowest rank waits for the others. Arguments as for pipeline_step."""
    step, longest = pipeline_step(ranks, strategy, cluster), slowest(ranks)
    immediate = replace(step, send_s=0.0)
    if step.at_once is None:
        whole_s, immediate_s = max(finish_s(step)), max(finish_s(immediate))
        return PipelineWait(max(0.0, immediate_s - longest.busy_s), max(0.0, whole_s - immediate_s))
    whole_s, (ends_s, busy_s) = max(computing_s(step)[0]), computing_s(immediate)
    position = 0 if longest is ranks[0] else step.ranks - 1 if longest is ranks[-1] else 1
    share = busy_s[position] / longest.busy_s if longest.busy_s else 1.0
    return PipelineWait(max(ends_s) - busy_s[position], max(0.0, whole_s - max(ends_s)), share)


def pipeline_spans(step: PipelineStep) -> Sequence[Sequence[Placed]]:
    """The actions of each rank in their order, and its update at the end."""
    if step.at_once is not None:
        return spans(step)
    update = Action(UPDATE, -1, -1)
    return [
        [*actions, Placed(update, actions[-1].end_s, actions[-1].end_s + rest_s)]
        for actions, rest_s in zip(placed(step), step.after_s, strict=True)
    ]


def _stage_time(rank: RankTime, stages: int) -> StageTime:
    seconds, each = rank.phase_s, rank.micro_batches * stages
    alone_s = seconds["forward"] + seconds["backward"] + seconds["recompute"]
    waited_s = 0.0 if rank.waits is None else rank.waits.total_s
    longer = (rank.micro_batches_s - waited_s) / alone_s / each if alone_s else 0.0
    half_s = seconds["backward"] / 2
    return StageTime(longer * seconds["forward"], longer * (half_s + seconds["recompute"]), longer * half_s)
