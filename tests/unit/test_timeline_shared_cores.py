"""Pipelines whose ranks share the cores of a CPU, against small steps of time, sums of work, and ranks with a core each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_timeline_pipeline import SCHEDULES, unequal

import gpuwise
from gpuwise.cost.timeline.orders import FORWARD, WEIGHTS, Action, orders
from gpuwise.cost.timeline.pipeline import WAITING_SCHEDULES, PipelineStep, finish_s
from gpuwise.cost.timeline.shared_cores import computing_s, spans

RANKS = 4
AFTER_S = (0.5, 0.75, 1.0, 1.25)


def pipeline(name: str, stages_per_rank: int, *, at_once: float, send_s: float = 0.0, micro_batches: int = 8) -> PipelineStep:
    step = unequal(name, stages_per_rank, ranks=RANKS, micro_batches=micro_batches, send_s=send_s)
    return replace(step, at_once=at_once, after_s=AFTER_S)


@pytest.mark.parametrize(("name", "stages_per_rank"), SCHEDULES)
def test_ranks_with_a_core_each_take_as_long_as_those_of_other_devices(name: str, stages_per_rank: int) -> None:
    step = pipeline(name, stages_per_rank, at_once=RANKS, send_s=0.0 if name in WAITING_SCHEDULES else 0.1)
    assert computing_s(step)[0] == pytest.approx(finish_s(step))


@pytest.mark.parametrize("name", WAITING_SCHEDULES)
def test_ranks_wait_for_what_they_send(name: str) -> None:
    """The last send of a rank comes before its update, which ends with the first rank's."""
    step = pipeline(name, 1, at_once=RANKS, send_s=0.1)
    assert max(computing_s(step)[0]) == pytest.approx(max(finish_s(step)))


@pytest.mark.parametrize(("name", "stages_per_rank"), SCHEDULES)
def test_a_single_core_is_never_idle(name: str, stages_per_rank: int) -> None:
    """Seconds are those of a quarter of it."""
    step = pipeline(name, stages_per_rank, at_once=1)
    work_s = sum(step.busy_s(rank) for rank in range(RANKS)) + sum(AFTER_S)
    assert max(computing_s(step)[0]) == pytest.approx(work_s / RANKS)


@pytest.mark.parametrize(
    ("name", "stages_per_rank"), [("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 2), ("zbv-zero-bubble", 2)]
)
def test_two_cores_of_four_ranks_against_small_steps_of_time(name: str, stages_per_rank: int) -> None:
    step = pipeline(name, stages_per_rank, at_once=2)
    ends_s, busy_s = computing_s(step)
    assert ends_s == pytest.approx(_in_small_steps(step), rel=1e-2)
    assert all(own / 2 <= of_rank + 1e-9 for own, of_rank in zip(map(step.busy_s, range(RANKS)), busy_s, strict=True))
    assert max(ends_s) < max(finish_s(step))


def _in_small_steps(step: PipelineStep, tick_s: float = 1e-3) -> list[float]:
    """When each rank is done: in each tick, every rank that has its input works on, by an equal part of the cores."""
    left = [list(actions) for actions in orders(step.parallelism, ranks=RANKS, micro_batches=step.micro_batches)]
    remaining = [step.seconds_of(actions[0]) for actions in left]
    rest, ends, done, now = list(step.after_s), [0.0] * RANKS, set[Action](), 0.0
    last = len(step.stages) - 1

    def ready(rank: int) -> bool:
        if not left[rank]:
            return rest[rank] > 0
        part, stage, number = left[rank][0]
        if part == WEIGHTS or stage == (0 if part == FORWARD else last):
            return True
        sender = stage - 1 if part == FORWARD else stage + 1
        return any(a.stage == sender and a.micro_batch == number and a.part != WEIGHTS for a in done if _same_way(a, part))

    while any(left) or max(rest) > 0:
        working = [rank for rank in range(RANKS) if ready(rank)]
        now += tick_s
        for rank in working:
            work = tick_s * RANKS / max(len(working), step.at_once or RANKS)
            if left[rank]:
                remaining[rank] -= work
                if remaining[rank] <= 0:
                    done.add(left[rank].pop(0))
                    remaining[rank] = remaining[rank] + step.seconds_of(left[rank][0]) if left[rank] else 0.0
            else:
                rest[rank] -= work
                ends[rank] = now
    return ends


def _same_way(action: Action, part: str) -> bool:
    return (action.part == FORWARD) == (part == FORWARD)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_long_runs_follow_from_short_ones(name: str) -> None:
    step = pipeline(name, 1, at_once=2, send_s=0.05, micro_batches=80)
    whole = spans(step)
    ends_s, busy_s = computing_s(step)
    assert ends_s == pytest.approx([rank[-1].end_s for rank in whole], rel=2e-3)
    assert busy_s == pytest.approx([sum(span.end_s - span.start_s for span in rank) for rank in whole], rel=5e-3)


@pytest.mark.parametrize("on", [pytest.param("here", marks=pytest.mark.slow), "h100-sxm:4"])
def test_the_timeline_of_a_pipeline_ends_with_the_forecast_step(on: str) -> None:
    timeline = gpuwise.step_timeline("gpt2", on=on, mesh="pp=4", accumulate=8, micro_batch=1, seq_len=128)
    assert timeline.whole_s == pytest.approx(timeline.forecast.step_time_s.value)
    assert sum(timeline.forecast.breakdown.values()) == pytest.approx(timeline.whole_s)
