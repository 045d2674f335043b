"""Copies of a run on several machines: each copies the files of its ranks, and the manifest comes when all are there."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import runs
from ranks import on_ranks
from tests.mounts import Faulty, Strict

import gpuwise
from gpuwise.runtime.checkpoint import CheckpointStore
from gpuwise.runtime.copies import copy_folder
from gpuwise.runtime.run import training

SETTINGS: dict[str, Any] = {"precision": "fp32", "compile": False, "progress": "silent", "preemption": "none", "steps": 8}


def of_rank(root: str, name: str, upto: int, machines: int, fault: str = "") -> dict[str, Any]:
    """Steps of a rank, up to this one. With two machines the ranks are on one each; `fault` is one of rank 1's mount."""
    runs.as_rank()
    rank = os.environ["RANK"]
    if machines == 2:
        socket.gethostname = lambda: f"machine-{rank}"  # type: ignore[assignment]
    training.LOOK_EVERY_S = 0.0
    files = Faulty(fault, "model.rank-00001.safetensors") if fault and rank == "1" else Strict()
    copy_folder.MountFiles = lambda: files  # type: ignore[assignment, misc, return-value]
    copies: Any = {"copy_to": f"{root}/bucket", "save_every": 1e-6}
    trainer = gpuwise.Trainer(runs.job(), mesh="dp_shard=2", micro_batch=4, run=f"{root}/{name}", **copies, **SETTINGS)
    losses = {}
    for step in trainer:
        losses[step.step] = step.loss
        if step.step == upto:
            break
    assert trainer.result is not None
    return {"losses": losses, "result": trainer.result.to_dict(), "closed": files.closed}


def newest(root: Path) -> int:
    checkpoint = CheckpointStore(root / "bucket/checkpoints").latest()
    return checkpoint.step if checkpoint else 0


@pytest.mark.parametrize("machines", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_other_machines_go_on_to_the_bit(machines: int, tmp_path: Path):
    whole = on_ranks(2, of_rank, str(tmp_path / "whole"), "run", 8, 1)[0]["losses"]
    losses: dict[int, float] = {}
    for number, upto in enumerate((3, 5, 8)):
        answers = on_ranks(2, of_rank, str(tmp_path), f"run-{number}", upto, machines)
        assert answers[0]["losses"] == answers[1]["losses"]
        assert min(answers[0]["losses"]) == max(losses, default=0) + 1
        losses |= answers[0]["losses"]
        assert newest(tmp_path) == upto
        assert answers[0]["result"]["checkpoints"]["copied_step"] == upto
        own = {name for name in answers[1]["closed"] if name != "run.json"}
        if machines == 1:
            assert not own
        else:  # each machine its own ranks' files; rank 0 what is of the whole run
            assert own == {f"{part}.rank-00001.{kind}" for part, kind in PARTS}
            assert not own & set(answers[0]["closed"])
            assert "manifest.json" in answers[0]["closed"]
        shutil.rmtree(tmp_path / f"run-{number}")
    assert losses == whole


PARTS = [("model", "safetensors"), ("optimizer", "safetensors"), ("random", "safetensors"), ("state", "json")]


@pytest.mark.parametrize("fault", ["drops", pytest.param("fails", marks=pytest.mark.slow)])
def test_a_file_of_another_machine_that_does_not_arrive_leaves_no_complete_copy(fault: str, tmp_path: Path):
    on_ranks(2, of_rank, str(tmp_path), "run-0", 3, 2)
    answers = on_ranks(2, of_rank, str(tmp_path), "run-1", 8, 2, fault)
    (unsaved,) = answers[0]["result"]["unsaved"]
    assert "is not complete: rank 1 on machine-1: " in unsaved
    assert unsaved.endswith("; the one of step 3 is.")
    assert not answers[1]["result"]["unsaved"]
    assert newest(tmp_path) == 3
    assert min(on_ranks(2, of_rank, str(tmp_path), "run-2", 8, 2)[0]["losses"]) == 4


def test_one_machine_goes_on_from_the_copies_of_two(tmp_path: Path):
    on_ranks(2, of_rank, str(tmp_path), "run-0", 3, 2)
    trainer = gpuwise.Trainer(
        runs.job(), micro_batch=8, run=tmp_path / "alone", copy_to=tmp_path / "bucket", **{**SETTINGS, "steps": 5}
    )
    assert [step.step for step in trainer] == [4, 5]
    assert newest(tmp_path) == 5
