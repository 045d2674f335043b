"""Orders of actions in a pipeline against those of torch.distributed.pipelining."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from gpuwise.cost.timeline.orders import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, orders
from gpuwise.strategy import Parallelism
from gpuwise.strategy.pipeline import divides_into_rounds, fewest_micro_batches, stages_of_rank

SCHEDULES = {
    "looped-bfs": schedules.ScheduleLoopedBFS,
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv-zero-bubble": schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": schedules.ScheduleDualPipeV,
}
PARTS = {
    schedules.FORWARD: FORWARD,
    schedules.FULL_BACKWARD: BACKWARD,
    schedules.BACKWARD_INPUT: INPUTS,
    schedules.BACKWARD_WEIGHT: WEIGHTS,
}


def plain(actions: list[Any]) -> tuple[Action, ...]:
    """PyTorch's actions without its placeholders for waiting; overlapped ones in the order in which it runs them."""
    parts = [part for action in actions if action is not None for part in action.sub_actions or (action,)]
    return tuple(Action(PARTS[part.computation_type], part.stage_index, part.microbatch_index) for part in parts)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(
    ("ranks", "micro_batches"), [(2, 1), (2, 4), (3, 3), (3, 7), (4, 8), (4, 10), (4, 16), (8, 16), (8, 17)]
)
def test_schedules_of_several_stages(name: str, stages: int, ranks: int, micro_batches: int) -> None:
    parallelism = Parallelism(pipeline_schedule=name, stages_per_rank=stages)
    if (
        (stages != 2 and name.endswith(("-v", "zbv-zero-bubble")))
        or micro_batches < fewest_micro_batches(parallelism, ranks)
        or not divides_into_rounds(parallelism, ranks=ranks, micro_batches=micro_batches)
    ):
        return
    own = stages_of_rank(parallelism, ranks=ranks, rank=0)
    last = stages * ranks
    shape = {"group_size": ranks, "group_rank": 0, "num_stages": last, "submod": None, "has_backward": True}
    more = {"device": "cpu", "group": None, "stage_index_to_group_rank": None}
    pytorch: list[Any] = [SimpleNamespace(stage_index=i, is_first=i == 0, is_last=i == last - 1, **shape, **more) for i in own]
    expected = SCHEDULES[name](pytorch, micro_batches, loss_fn=lambda *_: None).pipeline_order
    result = orders(parallelism, ranks=ranks, micro_batches=micro_batches)
    assert result == tuple(plain(expected[rank]) for rank in range(ranks))


class Stage:
    """A stage that notes what a schedule of one stage asks of it."""

    def __init__(self, index: int, stages: int):
        self.stage_index, self.num_stages, self.group_size, self.submod = index, stages, stages, None
        self.is_first, self.is_last, self.has_backward = index == 0, index == stages - 1, False
        self.actions: list[Action] = []

    def forward_one_chunk(self, number: int, *args: object, **kwargs: object) -> None:
        self.actions.append(Action(FORWARD, self.stage_index, number))

    def backward_one_chunk(self, number: int, **kwargs: object) -> None:
        self.actions.append(Action(BACKWARD, self.stage_index, number))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: [] if name.endswith("_ops") else None


@pytest.mark.parametrize(("name", "of_one"), [("gpipe", schedules.ScheduleGPipe), ("1f1b", schedules.Schedule1F1B)])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 4), (4, 9), (8, 12)])
def test_schedules_of_one_stage(name: str, of_one: Any, ranks: int, micro_batches: int) -> None:
    result = orders(Parallelism(pipeline_schedule=name), ranks=ranks, micro_batches=micro_batches)
    for rank in range(ranks):
        stage = Stage(rank, ranks)
        schedule = of_one(stage, micro_batches)
        schedule._stage_forward_initialized = schedule._stage_initialized = True
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        assert result[rank] == tuple(stage.actions)
