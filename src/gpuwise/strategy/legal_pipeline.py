"""What a pipeline's schedules exclude: rows of the table of gpuwise.strategy.legal."""

from __future__ import annotations

from gpuwise.strategy.exclusion import Exclusion
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES, divides_into_rounds, fewest_micro_batches, has_wrong_stages
from gpuwise.strategy.strategy import Strategy


def _splits_backward(strategy: Strategy) -> bool:
    return strategy.parallelism.pipeline_schedule in SPLIT_SCHEDULES


PIPELINE_EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion(
        lambda s, step: s.mesh.pp > 1 and has_wrong_stages(s.parallelism),
        "the schedule {schedule} does not run {stages} stages on a rank: gpipe and 1f1b run one, zbv-zero-bubble and "
        "dualpipe-v two, the others at least two.",
        ("--stages-per-rank", "--pipeline-schedule"),
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.mesh.pp > 1 and s.accumulation < fewest_micro_batches(s.parallelism, s.mesh.pp),
        "the schedule {schedule} needs at least {fewest} micro-batches a step over {ranks} ranks, got {accumulation}.",
        ("--accumulate", "--pipeline-schedule gpipe"),
    ),
    Exclusion(
        lambda s, step: s.mesh.pp > 1 and not divides_into_rounds(s.parallelism, ranks=s.mesh.pp, micro_batches=s.accumulation),
        "the schedule {schedule} runs micro-batches in rounds of equal size, and {accumulation} do not divide into rounds "
        "for {ranks} ranks.",
        ("--accumulate, a multiple of pp", "--pipeline-schedule 1f1b"),
    ),
    # The second half of a split backward pass finds the parameters of the first by their autograd nodes, which freed and
    # gathered again are others: gradients are lost without an error (PyTorch 2.13).
    Exclusion(
        lambda s, step: (
            s.mesh.pp > 1 and _splits_backward(s) and s.parallelism.shard == "parameters" and s.mesh.dp_shard * s.mesh.cp > 1
        ),
        "the schedule {schedule} splits the backward pass, and would lose gradients of parameters that are freed in between.",
        ("--shard gradients", "--pipeline-schedule interleaved-1f1b"),
    ),
    Exclusion(
        lambda s, step: s.mesh.pp > 1 and _splits_backward(s) and s.compile,
        "the schedule {schedule} splits the backward pass, which compiled blocks run as a whole.",
        ("leave out --compile", "--pipeline-schedule interleaved-1f1b"),
    ),
    Exclusion(
        lambda s, step: s.mesh.pp > 1 and _splits_backward(s) and s.recompute == "selective",
        "the schedule {schedule} goes backward through a block in two parts, and what selective recompute keeps serves one.",
        ("--recompute full", "--pipeline-schedule interleaved-1f1b"),
    ),
)
