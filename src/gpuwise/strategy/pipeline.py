"""Pipeline schedules: which stages a rank has, and what each schedule needs."""

from __future__ import annotations

from gpuwise.strategy.parallelism import SINGLE_STAGE_SCHEDULES, Parallelism

# First and last stage on the first rank: stages go down the ranks and back up.
V_SCHEDULES = ("zbv-zero-bubble", "dualpipe-v")
# A backward pass in two parts: gradients of a stage's inputs, and later those of its parameters.
SPLIT_SCHEDULES = ("interleaved-zero-bubble", *V_SCHEDULES)
# Micro-batches go in rounds of at least as many as there are ranks.
_IN_ROUNDS = ("interleaved-1f1b", "interleaved-zero-bubble")


def stages_of_rank(parallelism: Parallelism, *, ranks: int, rank: int) -> tuple[int, ...]:
    """Numbers of the stages of one of the ranks of a pipeline, ascending."""
    count = ranks * parallelism.stages_per_rank
    if parallelism.pipeline_schedule in V_SCHEDULES:
        return (rank, count - 1 - rank)
    return tuple(range(rank, count, ranks))


def rank_of_stage(parallelism: Parallelism, *, ranks: int, stage: int) -> int:
    """The rank of a pipeline that has a stage."""
    if parallelism.pipeline_schedule in V_SCHEDULES:
        return min(stage, ranks * parallelism.stages_per_rank - 1 - stage)
    return stage % ranks


def has_wrong_stages(parallelism: Parallelism) -> bool:
    """Whether the schedule does not run this number of stages on a rank."""
    schedule, stages = parallelism.pipeline_schedule, parallelism.stages_per_rank
    if schedule in SINGLE_STAGE_SCHEDULES:
        return stages != 1
    return stages != 2 if schedule in V_SCHEDULES else stages < 2


def fewest_micro_batches(parallelism: Parallelism, ranks: int) -> int:
    """The least number of micro-batches of a step that the schedule takes (torch.distributed.pipelining.schedules)."""
    schedule = parallelism.pipeline_schedule
    if schedule == "1f1b":
        return ranks
    return 2 * ranks if schedule == "dualpipe-v" else 1


def divides_into_rounds(parallelism: Parallelism, *, ranks: int, micro_batches: int) -> bool:
    """Whether the micro-batches of a step go into rounds of equal size, where the schedule has rounds."""
    if parallelism.pipeline_schedule not in _IN_ROUNDS:
        return True
    return micro_batches % max(1, micro_batches // ranks) == 0
