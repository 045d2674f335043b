"""Whole runs on several ranks: the losses of one process, decisions that all ranks follow, errors that name a rank."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from ranks import on_ranks
from torch import nn

import gpuwise
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.results.training import TrainResult

SETTINGS: dict[str, Any] = {"precision": "fp32", "compile": False, "progress": "silent", "preemption": "none"}


def each_step(trainer: gpuwise.Trainer) -> list[float]:
    return [step.loss for step in trainer]


def of_rank(mesh: str, folder: str, micro_batch: int, settings: dict[str, Any]) -> dict[str, Any]:
    runs.as_rank()
    keywords: Any = {**SETTINGS, **settings}
    trainer = gpuwise.Trainer(runs.job(), mesh=mesh, micro_batch=micro_batch, run=folder, **keywords)
    losses = each_step(trainer)
    assert isinstance(trainer.result, TrainResult)
    return {"losses": losses, "result": trainer.result.to_dict()}


def alone(folder: Path, micro_batch: int, accumulate: int, **settings: Any) -> tuple[list[float], TrainResult]:
    keywords: Any = {**SETTINGS, **settings}
    trainer = gpuwise.Trainer(runs.job(), micro_batch=micro_batch, accumulate=accumulate, run=folder, **keywords)
    losses = each_step(trainer)
    assert trainer.result is not None
    return losses, trainer.result


@pytest.mark.parametrize("mesh", ["dp=2", "dp_shard=2"])
def test_the_losses_metrics_and_weights_are_those_of_one_process(mesh: str, tmp_path: Path):
    settings = {"steps": 20, "evaluate_every": 8, "monitor": "min:error"}
    expected, result = alone(tmp_path / "alone", 4, 2, **settings)
    answers = on_ranks(2, of_rank, mesh, str(tmp_path / "ranks"), 4, settings)
    assert answers[0]["losses"] == answers[1]["losses"] == pytest.approx(expected, rel=1e-5)
    metrics, parts = answers[0]["result"]["metrics"], answers[0]["result"]["loss_parts"]
    assert metrics == pytest.approx(result.metrics, rel=1e-5)
    assert parts.keys() == result.loss_parts.keys()
    assert answers[0]["result"]["best"]["step"] == result.best["step"]  # type: ignore[index]
    exported = gpuwise.Trainer(runs.job(), run=tmp_path / "ranks", steps=20, micro_batch=8, resume=True, progress="silent")
    weights = load(exported.export(tmp_path / "weights.safetensors"))
    for name, value in load(
        gpuwise.Trainer(runs.job(), run=tmp_path / "alone", steps=20, micro_batch=8, resume=True, progress="silent").export(
            tmp_path / "alone.safetensors"
        )
    ).items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


def load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def with_one_bias(folder: str) -> int | None:
    runs.as_rank()
    job = runs.job(model=partial(nn.Linear, 4, 1), loss=runs.plain_loss, data=one_target, evaluate=None)
    result = gpuwise.train(job, mesh="dp_shard=2", micro_batch=4, run=folder, **{**SETTINGS, "steps": 3})
    assert result.checkpoints is not None
    return result.checkpoints["last_step"]


def one_target() -> dict[str, torch.Tensor]:
    return {"x": runs.data()["x"], "y": runs.data()["y"][:, :1]}


def test_a_parameter_with_fewer_elements_than_ranks_is_saved(tmp_path: Path):
    assert on_ranks(2, with_one_bias, str(tmp_path / "run")) == [3, 3]


def stopped_by_a_signal_to_one(folder: str) -> dict[str, Any]:
    runs.as_rank()
    keywords: Any = {**SETTINGS, "steps": 1000}
    trainer = gpuwise.Trainer(runs.job(), mesh="dp=2", micro_batch=4, run=folder, **keywords)
    for step in trainer:
        if step.step == 5 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
    assert trainer.result is not None
    return trainer.result.to_dict()


def test_a_signal_to_any_rank_ends_all_after_the_same_step_saved(tmp_path: Path):
    first, second = on_ranks(2, stopped_by_a_signal_to_one, str(tmp_path / "run"))
    assert first["steps"] == second["steps"] == 6
    assert first["stopped"] == second["stopped"] == "interrupted"
    assert "SIGTERM on rank 1" in first["stop_reason"]
    assert (tmp_path / "run/checkpoints/step-00000006").is_dir()
    again = on_ranks(2, of_rank, "dp=2", str(tmp_path / "run"), 4, {"steps": 8})
    assert again[0]["result"]["resumed_from"] == 6
    whole = on_ranks(2, of_rank, "dp=2", str(tmp_path / "whole"), 4, {"steps": 8})
    assert again[0]["losses"] == again[1]["losses"] == whole[0]["losses"][6:]


def failing(kind: str) -> str:
    runs.as_rank()
    rank, data = os.environ["RANK"], runs.data
    if kind == "data" and rank == "1":

        def data():
            return {name: column[:100] for name, column in runs.data().items()}

    if kind == "nan":

        def data():
            return {**runs.data(), "x": torch.full((128, 4), float("nan"))}

    seed = 1 if kind == "settings" and rank == "1" else 0
    keywords: Any = {**SETTINGS, "steps": 10, "seed": seed}
    try:
        gpuwise.train(runs.job(data=data), mesh="dp=2", micro_batch=4, **keywords)
    except GpuwiseError as error:
        return f"{type(error).__name__} {error.code}: {error.what}"
    return "no error"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("data", "has another data than rank 0"),
        pytest.param("settings", "seed 1", marks=pytest.mark.slow),
        pytest.param("nan", "NaN", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_end_with_the_cause(kind: str, words: str):
    answers = on_ranks(2, failing, kind)
    assert all(words in answer for answer in answers), answers
    if kind != "nan":
        assert any("OtherRankError" in answer and "rank " in answer for answer in answers), answers


def test_a_mesh_in_one_process_is_refused_with_the_way_out():
    with pytest.raises(InputError, match="2 devices, and this is one process") as raised:
        gpuwise.train(runs.job(), mesh="dp=2", steps=1)
    assert "torchrun --nproc-per-node 2" in raised.value.ways_out[0]


def of_eight_bits(mesh: str | None) -> list[float]:
    if mesh is not None:
        runs.as_rank()
    job = runs.job(model=wide, loss=runs.plain_loss, evaluate=None, clip_norm=None, optimizer="adamw-8bit")
    options: Any = {
        **SETTINGS,
        "steps": 4,
        "run": None,
        **({"micro_batch": 8} if mesh is None else {"mesh": mesh, "micro_batch": 4}),
    }
    return each_step(gpuwise.Trainer(job, **options))


def wide() -> nn.Module:
    """Its middle weight is large enough for state of 8 bits on each rank."""
    return nn.Sequential(nn.Linear(4, 128), nn.Linear(128, 128), nn.Linear(128, 2))


@pytest.mark.slow
def test_state_of_8_bits_is_sharded_with_the_parameters():
    """Its blocks are cut elsewhere, so that later losses differ by what 8 bits lose."""
    (expected,) = on_ranks(1, of_eight_bits, None)
    first, second = on_ranks(2, of_eight_bits, "dp_shard=2")
    assert first == second == pytest.approx(expected, rel=1e-3)
    assert first[0] == pytest.approx(expected[0], rel=1e-6)
