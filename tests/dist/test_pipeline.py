"""Pipeline parallelism: losses and weights are those of one process, whatever the schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from tests.dist.tiny_decoder import decoder_job
from tests.dist.training import compare

from gpuwise.errors import InputError
from gpuwise.strategy import Mesh, Parallelism, StepFacts, Strategy, check_techniques
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES

STAGES_PER_RANK = {
    "gpipe": 1,
    "1f1b": 1,
    "looped-bfs": 2,
    "interleaved-1f1b": 2,
    "interleaved-zero-bubble": 2,
    "zbv-zero-bubble": 2,
    "dualpipe-v": 2,
}
QUICK = ("1f1b", "zbv-zero-bubble")


def pipelined(schedule: str, *, stages: int | None = None, shard: str = "parameters", **axes: int) -> Strategy:
    """A strategy over a mesh with these axes, with eight micro-batches of the global batch."""
    mesh = Mesh(**axes)
    stages = STAGES_PER_RANK[schedule] if stages is None else stages
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages, shard=shard)
    return Strategy(mesh=mesh, parallelism=parallelism, accumulation=8 // mesh.data_parallel)


@pytest.mark.parametrize(
    "schedule", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STAGES_PER_RANK]
)
def test_two_ranks(schedule: str):
    difference = compare(pipelined(schedule, pp=2))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("schedule", STAGES_PER_RANK)
def test_four_ranks(schedule: str):
    difference = compare(pipelined(schedule, pp=4), partial(decoder_job, layers=8))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["dp_shard", "dp_replicate"])
@pytest.mark.parametrize("schedule", STAGES_PER_RANK)
def test_stages_under_data_parallelism(schedule: str, axis: str):
    shard = "gradients" if schedule in SPLIT_SCHEDULES else "parameters"
    difference = compare(pipelined(schedule, shard=shard, pp=2, **{axis: 2}))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zbv-zero-bubble", "interleaved-1f1b"])
@pytest.mark.parametrize("change", ["clip", "recompute", "average", "uneven"])
def test_with_techniques(schedule: str, change: str):
    strategy = pipelined(schedule, pp=2).but(recompute="full" if change == "recompute" else "none")
    job = {"clip": {"clip_norm": 0.1}, "average": {"ema_decay": 0.9}, "uneven": {"layers": 5}}.get(change, {})
    difference = compare(strategy, partial(decoder_job, **job))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"compile": True}, {"adapter": "lora", "adapter_rank": 4}, {"precision": "bf16"}, {"precision": "amp-bf16"}],
    ids=str,
)
def test_with_other_settings(change: dict[str, object]):
    difference = compare(pipelined("1f1b", pp=2).but(**change), steps=4)  # type: ignore[arg-type]
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-zero-bubble", "zbv-zero-bubble"])
@pytest.mark.parametrize("change", ["", "sequence", "loss"])
def test_stages_under_tensor_parallelism(schedule: str, change: str):
    strategy = pipelined(schedule, pp=2, tp=2)
    if change:
        strategy = strategy.but(parallelism=replace(strategy.parallelism, **{f"{change}_parallel": True}))
    difference = compare(strategy, partial(decoder_job, tied=change == "" and schedule == "1f1b"))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


def test_an_embedding_tied_to_the_head():
    difference = compare(pipelined("1f1b", pp=2), partial(decoder_job, tied=True, clip_norm=0.5))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


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


