"""The simulation of a pipeline against longest paths, formulas of the literature, and itself without short cuts."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gpuwise.cost.timeline.orders import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, orders
from gpuwise.cost.timeline.pipeline import PipelineStep, StageTime, finish_s, placed
from gpuwise.strategy import Parallelism

SCHEDULES = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("looped-bfs", 2),
    ("interleaved-1f1b", 2),
    ("interleaved-1f1b", 3),
    ("interleaved-zero-bubble", 2),
    ("zbv-zero-bubble", 2),
    ("dualpipe-v", 2),
]


def unequal(name: str, stages_per_rank: int, *, ranks: int, micro_batches: int, send_s: float, seed: int = 0) -> PipelineStep:
    """Stages of random lengths."""
    draw = random.Random(f"{name} {seed}")
    stages = tuple(
        StageTime(draw.uniform(0.8, 1.2), draw.uniform(0.8, 1.2), draw.uniform(0.8, 1.2))
        for _ in range(ranks * stages_per_rank)
    )
    parallelism = Parallelism(pipeline_schedule=name, stages_per_rank=stages_per_rank)
    return PipelineStep(parallelism, ranks, micro_batches, stages, send_s)


def equal(name: str, stages_per_rank: int, *, ranks: int, micro_batches: int) -> PipelineStep:
    """Stages of which each part takes a second, divided by the stages of a rank."""
    stages = (StageTime(*[1 / stages_per_rank] * 3),) * (ranks * stages_per_rank)
    return PipelineStep(Parallelism(pipeline_schedule=name, stages_per_rank=stages_per_rank), ranks, micro_batches, stages)


def longest_path_s(pipeline: PipelineStep, *, waits: bool) -> list[float]:
    """When the last action of each rank ends: times are raised until none is too early."""
    stages, last = pipeline.stages, len(pipeline.stages) - 1
    order = orders(pipeline.parallelism, ranks=pipeline.ranks, micro_batches=pipeline.micro_batches)
    seconds = {
        action: {FORWARD: t[0], BACKWARD: t[1] + t[2], INPUTS: t[1], WEIGHTS: t[2]}[action.part]
        for actions in order
        for action in actions
        for t in [stages[action.stage]]
    }

    def target(action: Action) -> int | None:
        to = action.stage + {FORWARD: 1, WEIGHTS: last + 1}.get(action.part, -1)
        return to if 0 <= to <= last else None

    def sent_s(action: Action) -> float:
        to = target(action)
        return 0.0 if to is None or pipeline.rank_of(to) == pipeline.rank_of(action.stage) else pipeline.send_s

    end, raised = dict.fromkeys(seconds, 0.0), True
    while raised:
        raised = False
        for actions in order:
            for before, action in zip([None, *actions], actions, strict=False):
                ready = 0.0 if before is None else end[before] + (sent_s(before) if waits else 0.0)
                sources = [
                    Action(part, stage, action.micro_batch)
                    for part in (FORWARD, BACKWARD, INPUTS)
                    for stage in (action.stage - 1, action.stage + 1)
                ]
                for source in sources:
                    same = (source.part == FORWARD) == (action.part == FORWARD) and action.part != WEIGHTS
                    if same and source in end and target(source) == action.stage:
                        ready = max(ready, end[source] + sent_s(source))
                if ready + seconds[action] > end[action] + 1e-12:
                    end[action], raised = ready + seconds[action], True
    return [end[actions[-1]] for actions in order]


@pytest.mark.parametrize(("name", "stages"), SCHEDULES)
def test_actions_end_as_late_as_the_longest_path_to_them(name: str, stages: int) -> None:
    pipeline = unequal(name, stages, ranks=3, micro_batches=6, send_s=0.3)
    waits = name in ("gpipe", "1f1b")
    assert finish_s(pipeline) == pytest.approx(longest_path_s(pipeline, waits=waits))


@pytest.mark.parametrize(("name", "stages"), SCHEDULES)
@pytest.mark.parametrize("send_s", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("micro_batches", [40, 63, 100])
def test_long_runs_follow_from_short_ones(name: str, stages: int, send_s: float, micro_batches: int) -> None:
    for seed in range(3):
        if name.startswith("interleaved") and micro_batches % 4:
            continue  # the last rounds would be longer
        pipeline = unequal(name, stages, ranks=4, micro_batches=micro_batches, send_s=send_s, seed=seed)
        whole = [actions[-1].end_s for actions in placed(pipeline)]
        assert finish_s(pipeline) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(("name", "stages"), [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 4)])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (8, 64)])
def test_the_bubble_of_equal_stages(name: str, stages: int, ranks: int, micro_batches: int) -> None:
    """(p - 1) (forward + backward) / stages of a rank (Narayanan et al. 2021, section 2.2)."""
    pipeline = equal(name, stages, ranks=ranks, micro_batches=micro_batches)
    assert max(finish_s(pipeline)) - pipeline.busy_s(0) == pytest.approx(3 * (ranks - 1) / stages)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (8, 64)])
def test_gradients_of_weights_fill_bubbles(ranks: int, micro_batches: int) -> None:
    """(p - 1) (forward + inputs - weights) of ZB-H1 (Qi et al. 2023, table 2), in two stages of half the length; ZB-V and
    DualPipeV leave no more than that of one whole stage."""
    interleaved, *v_shaped = (
        equal(name, 2, ranks=ranks, micro_batches=micro_batches)
        for name in ("interleaved-zero-bubble", "zbv-zero-bubble", "dualpipe-v")
    )
    plain = equal("interleaved-1f1b", 2, ranks=ranks, micro_batches=micro_batches)
    bubble_s = max(finish_s(interleaved)) - interleaved.busy_s(0)
    assert (ranks - 1) / 2 <= bubble_s < max(finish_s(plain)) - plain.busy_s(0)
    for pipeline in v_shaped:
        assert max(finish_s(pipeline)) - pipeline.busy_s(0) <= ranks - 1


def test_actions_are_placed_without_overlap() -> None:
    pipeline = unequal("1f1b", 1, ranks=4, micro_batches=8, send_s=0.1)
    for rank, actions in enumerate(placed(pipeline)):
        assert all(later.start_s >= earlier.end_s - 1e-9 for earlier, later in pairwise(actions))
        assert sum(end - start for _, start, end in actions) == pytest.approx(pipeline.busy_s(rank))
