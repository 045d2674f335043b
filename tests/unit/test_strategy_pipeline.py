"""What gpuwise.strategy.pipeline says of schedules is what PyTorch's own do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

from gpuwise.runtime.parallel.pipeline_schedule import SCHEDULES
from gpuwise.strategy import Parallelism
from gpuwise.strategy.parallelism import PIPELINE_SCHEDULES, SINGLE_STAGE_SCHEDULES
from gpuwise.strategy.pipeline import (
    V_SCHEDULES,
    divides_into_rounds,
    fewest_micro_batches,
    has_wrong_stages,
    rank_of_stage,
    stages_of_rank,
)

CASES = [
    (schedule, ranks, stages)
    for schedule in PIPELINE_SCHEDULES
    for ranks in (2, 3, 4)
    for stages in (1, 2, 3)
    if not has_wrong_stages(Parallelism(pipeline_schedule=schedule, stages_per_rank=stages))
]


@pytest.mark.parametrize(("schedule", "ranks", "stages"), CASES)
def test_stages_lie_where_pytorch_has_them(schedule: str, ranks: int, stages: int):
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages)
    style = "v" if schedule in V_SCHEDULES else "loop"
    expected = generate_stage_to_rank_mapping(ranks, ranks * stages, style)
    assert {stage: rank_of_stage(parallelism, ranks=ranks, stage=stage) for stage in expected} == expected
    for rank in range(ranks):
        assert stages_of_rank(parallelism, ranks=ranks, rank=rank) == tuple(s for s, r in expected.items() if r == rank)


def accepts(schedule: str, ranks: int, stages: int, micro_batches: int) -> bool:
    """Whether PyTorch makes the schedule."""
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages)
    own = [
        SimpleNamespace(stage_index=index, num_stages=ranks * stages, group_size=ranks, group_rank=0, submod=nn.Identity())
        for index in stages_of_rank(parallelism, ranks=ranks, rank=0)
    ]
    try:
        SCHEDULES[schedule](
            own[0] if schedule in SINGLE_STAGE_SCHEDULES else own, micro_batches, loss_fn=lambda output, target: output
        )
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("schedule", "ranks", "stages"), CASES)
def test_micro_batches_are_those_that_pytorch_takes(schedule: str, ranks: int, stages: int):
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages)
    for count in range(1, 14):
        taken = count >= fewest_micro_batches(parallelism, ranks)
        taken = taken and divides_into_rounds(parallelism, ranks=ranks, micro_batches=count)
        assert accepts(schedule, ranks, stages, count) == taken, count
