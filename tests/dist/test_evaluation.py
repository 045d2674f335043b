"""A job's evaluate on several ranks: metrics are those of one process, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.dist.language_jobs import language_job
from tests.dist.pipeline_cases import pipelined
from tests.dist.ranks import on_ranks
from tests.dist.tiny_decoder import decoder_job
from tests.dist.training import micro_batches
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Parallelism, Strategy

LOSS_PARALLEL = Parallelism(sequence_parallel=True, loss_parallel=True)


def metrics_of(model: nn.Module, job: Job) -> dict[str, float]:
    """Over two batches of different sizes; the model is called with its tokens alone."""
    losses, right = [], []
    for size in (4, 3):
        batch = job.batch(size, seed=size)  # type: ignore[call-arg]
        logits = model(batch["tokens"])
        targets = batch.get("targets", batch["tokens"])
        losses.append(float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())))
        right.append(float((logits.argmax(-1) == targets).float().mean()))
    return {"loss": sum(losses), "accuracy": sum(right)}


def evaluated(make_job: Callable[[], Job], strategy: Strategy) -> list[dict[str, float]]:
    """Metrics before and after two steps, on this rank."""
    torch.manual_seed(0)
    job = make_job()
    program = build(job, strategy, "cpu", make_world(strategy.mesh, "cpu") if strategy.mesh.devices > 1 else None)
    metrics = []
    for step in range(3):
        program.model.eval()
        with torch.no_grad():
            metrics.append(dict(program.evaluated(partial(metrics_of, job=job))))
        program.model.train()
        program.step(micro_batches(job, program, step))
    return metrics


CASES: dict[str, tuple[Strategy, Callable[[], Job]]] = {
    "pipeline": (pipelined("1f1b", pp=2), partial(decoder_job, tied=True)),
    "pipeline of two stages a rank": (pipelined("zbv-zero-bubble", pp=2), decoder_job),
    "pipeline of shards": (pipelined("interleaved-1f1b", pp=2, dp_shard=2), decoder_job),
    "pipeline of tensor parallel stages": (
        pipelined("1f1b", pp=2, tp=2).but(parallelism=Parallelism(loss_parallel=True)),
        decoder_job,
    ),
    "loss parallel": (Strategy(mesh=Mesh(tp=2), parallelism=LOSS_PARALLEL), decoder_job),
    "context": (Strategy(mesh=Mesh(cp=2)), partial(language_job, "llama")),
    "experts": (Strategy(mesh=Mesh(dp_shard=2, ep=2)), partial(language_job, "mixtral")),
}
DEFAULT = ("pipeline", "loss parallel")


@pytest.mark.parametrize("case", [case if case in DEFAULT else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_metrics_are_those_of_one_process(case: str):
    strategy, make_job = CASES[case]
    ranks = strategy.mesh.data_parallel
    strategy = strategy.but(micro_batch=16 // strategy.accumulation // ranks)
    alone = strategy.but(mesh=Mesh(), accumulation=strategy.accumulation * ranks, parallelism=Parallelism())
    (expected,) = on_ranks(1, evaluated, make_job, alone)
    for metrics in on_ranks(strategy.mesh.devices, evaluated, make_job, strategy):
        for ours, one in zip(metrics, expected, strict=True):
            assert ours == pytest.approx(one, rel=1e-5)
    assert expected[0]["loss"] != pytest.approx(expected[2]["loss"], rel=1e-4)


def reading_a_part(strategy: Strategy) -> tuple[int, str]:
    """What evaluate sees of a model in stages: a plain attribute, and the refusal of a part."""
    torch.manual_seed(0)
    job = decoder_job()
    program = build(job, strategy, "cpu", make_world(strategy.mesh, "cpu"))
    seen: list[Any] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert not model.training
        seen.append(len(list(model.parameters())))
        try:
            model.blocks[0](torch.zeros(1, 4, 32))  # type: ignore[index, operator]
        except UnsupportedError as error:
            seen.append(error.what)
        return {}

    program.model.eval()
    program.evaluated(evaluate)
    return tuple(seen)  # type: ignore[return-value]


def test_a_part_of_a_model_in_stages_is_refused():
    (first, problem), (last, _) = on_ranks(2, reading_a_part, pipelined("1f1b", pp=2).but(micro_batch=2))
    assert first + last == len(list(decoder_job().model().parameters()))
    assert "evaluate uses model.blocks" in problem
