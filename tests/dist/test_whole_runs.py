"""Whole runs of language models on four ranks: losses, metrics and the exported model are those of one process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.dist import runs
from tests.dist.language_jobs import language_job
from tests.dist.ranks import on_ranks
from torch import nn

import gpuwise
from gpuwise import Job

SETTINGS: dict[str, Any] = {
    "precision": "fp32",
    "compile": False,
    "progress": "silent",
    "preemption": "none",
    "steps": 12,
    "evaluate_every": 5,
}
GLOBAL_BATCH = 16


def job_of(model: str) -> Job:
    """With data to read and metrics; samples are those of one seed."""
    job = language_job(model, clip_norm=0.5)
    data = partial(job.batch, 64, seed=1)

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert job.loss is not None
        return {"error": float(job.loss(model, job.batch(8, seed=2)))}  # type: ignore[arg-type, call-arg]

    return replace(job, data=data, evaluate=evaluate)


def run(model: str, folder: str, micro_batch: int, accumulate: int, mesh: str | None) -> dict[str, Any]:
    if mesh is not None:
        runs.as_rank()
    options: Any = {**SETTINGS, **({} if mesh is None else {"mesh": mesh})}
    trainer = gpuwise.Trainer(job_of(model), micro_batch=micro_batch, accumulate=accumulate, run=folder, **options)
    losses = [step.loss for step in trainer]
    assert trainer.result is not None
    return {"losses": losses, "metrics": trainer.result.metrics}


def exported(model: str, folder: Path) -> dict[str, torch.Tensor]:
    """The plain model of a finished run, written by one process."""
    options: Any = {**SETTINGS, "resume": True}
    trainer = gpuwise.Trainer(job_of(model), run=folder, micro_batch=GLOBAL_BATCH, **options)
    return load_file(trainer.export(folder / "weights.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mesh", "readers", "accumulate"),
    [
        ("llama", "dp_shard=2,tp=2", 2, 1),
        ("llama", "dp_shard=2,cp=2", 2, 1),
        ("mixtral", "dp_shard=4,ep=2", 4, 1),
        ("llama", "dp_shard=2,pp=2", 2, 2),
    ],
)
def test_a_run_on_four_ranks_is_that_of_one_process(model: str, mesh: str, readers: int, accumulate: int, tmp_path: Path):
    micro_batch = GLOBAL_BATCH // readers // accumulate
    (alone,) = on_ranks(1, run, model, str(tmp_path / "alone"), micro_batch, readers * accumulate, None)
    ranks = on_ranks(4, run, model, str(tmp_path / "ranks"), micro_batch, accumulate, mesh)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert rank["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
    weights = exported(model, tmp_path / "ranks")
    expected = exported(model, tmp_path / "alone")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)
