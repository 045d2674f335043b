"""Pipeline parallelism: losses and weights are those of one process, whatever the schedule."""

from __future__ import annotations

import pytest
from tests.dist.cases import Case, check, each_of
from tests.dist.pipeline_cases import PIPELINE_AND_OTHER_CASES, PIPELINE_CASES, pipelined
from tests.dist.training import compare

from gpuwise.errors import InputError
from gpuwise.strategy import StepFacts, Strategy, check_techniques
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES


@each_of((*PIPELINE_CASES, *PIPELINE_AND_OTHER_CASES))
def test_stages_train_as_one_process(case: Case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"precision": "bf16"}, {"precision": "amp-bf16"}],
    ids=str,
)
def test_with_other_settings(change: dict[str, object]):
    difference = compare(pipelined("1f1b", pp=2).but(**change), steps=4)  # type: ignore[arg-type]
    assert difference.loss < 1e-5
    assert difference.weights < 1e-5


@pytest.mark.parametrize("schedule", SPLIT_SCHEDULES)
def test_split_schedules_refuse_freed_parameters(schedule: str):
    with pytest.raises(InputError, match="would lose gradients"):
        check_techniques(pipelined(schedule, pp=2, dp_shard=2), StepFacts(priced=False))


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (pipelined("1f1b", stages=2, pp=2), "does not run 2 stages"),
        (pipelined("looped-bfs", stages=1, pp=2), "does not run 1 stages"),
        (pipelined("zbv-zero-bubble", stages=3, pp=2), "does not run 3 stages"),
        (pipelined("1f1b", pp=4).but(accumulation=3), "at least 4 micro-batches"),
        (pipelined("dualpipe-v", pp=2).but(accumulation=3), "at least 4 micro-batches"),
        (pipelined("interleaved-1f1b", pp=2).but(accumulation=5), "5 do not divide"),
        (pipelined("zbv-zero-bubble", pp=2).but(compile=True), "compiled blocks"),
        (pipelined("zbv-zero-bubble", pp=2).but(recompute="selective"), "selective recompute"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_a_schedule_does_not_take(strategy: Strategy, problem: str):
    with pytest.raises(InputError, match=problem):
        check_techniques(strategy, StepFacts(priced=False))
