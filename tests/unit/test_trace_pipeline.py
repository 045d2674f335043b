"""Micro-batches in flight against the orders of torch.distributed.pipelining's schedules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.strategy.pipeline import stages_of_rank
from gpuwise.trace.parallel.balance import balanced
from gpuwise.trace.parallel.pipeline import in_flight

SCHEDULES = {
    "looped-bfs": schedules.ScheduleLoopedBFS,
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv-zero-bubble": schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": schedules.ScheduleDualPipeV,
}


def most_in_flight(actions: list[Any]) -> int:
    """The largest number of forward passes whose backward is not done."""
    live = most = 0
    for action in actions:
        for part in () if action is None else action.sub_actions or (action,):
            live += part.computation_type == schedules.FORWARD
            live -= part.computation_type in (schedules.FULL_BACKWARD, schedules.BACKWARD_WEIGHT)
        most = max(most, live)
    return most


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_as_many_micro_batches_are_in_flight_as_the_schedule_leaves(name: str, ranks: int, micro_batches: int) -> None:
    parallelism = Parallelism(pipeline_schedule=name, stages_per_rank=2)
    strategy = Strategy(mesh=Mesh(pp=ranks), accumulation=micro_batches, parallelism=parallelism)
    own = stages_of_rank(parallelism, ranks=ranks, rank=0)
    shape = {"group_size": ranks, "group_rank": 0, "num_stages": 2 * ranks, "submod": None, "has_backward": True}
    more = {"device": "cpu", "group": None, "stage_index_to_group_rank": None}
    stages: list[Any] = [
        SimpleNamespace(stage_index=i, is_first=i == 0, is_last=i == 2 * ranks - 1, **shape, **more) for i in own
    ]
    order = SCHEDULES[name](stages, micro_batches, loss_fn=lambda *_: None).pipeline_order
    for rank in range(ranks):
        assert 2 * in_flight(strategy, rank) == most_in_flight(order[rank])


def test_schedules_of_one_stage() -> None:
    pipeline = Strategy(mesh=Mesh(pp=4), accumulation=6)
    assert [in_flight(pipeline, rank) for rank in range(4)] == [4, 3, 2, 1]
    assert in_flight(pipeline.but(parallelism=Parallelism(pipeline_schedule="gpipe")), 3) == 6


@pytest.mark.parametrize(
    ("costs", "parts", "starts"),
    [([1] * 8, 4, (0, 2, 4, 6)), ([1] * 7, 2, (0, 3)), ([1, 1, 1, 5], 2, (0, 3)), ([5, 1, 1, 1], 2, (0, 1))],
)
def test_runs_of_blocks_are_balanced(costs: list[int], parts: int, starts: tuple[int, ...]) -> None:
    assert balanced(costs, parts) == starts
