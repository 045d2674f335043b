"""The disk of one rank is full: training goes on on all of them, no older checkpoint is lost, and the rank is named."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import runs
from ranks import on_ranks
from tests.quick import quick

import gpuwise
from gpuwise.runtime.checkpoint import CheckpointStore, Files

STEPS = 200
SETTINGS: dict[str, Any] = {"precision": "fp32", "compile": False, "progress": "silent", "preemption": "none"}


def trained(folder: str, refusals: int) -> dict[str, Any]:
    """Trains on this rank. After the first checkpoint the disk refuses some writes of rank 1."""
    runs.as_rank()
    written, left = Files.write, refusals

    def write(files: Files, fd: int, data: memoryview) -> None:
        nonlocal left
        if os.environ["RANK"] == "1" and left and any(Path(folder).glob("checkpoints/step-*")):
            left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        written(files, fd, data)

    with mock.patch.object(Files, "write", write):
        trainer = gpuwise.Trainer(
            runs.job(), mesh="dp_shard=2", micro_batch=4, run=folder, steps=STEPS, save_every=1e-6, **SETTINGS
        )
        for _ in trainer:
            pass
    assert trainer.result is not None
    return trainer.result.to_dict()


@pytest.mark.parametrize(
    ("refusals", "saved"), quick([(1, True), (1_000_000, False)], slow=[(1, True)]), ids=["for a while", "to the end"]
)
def test_a_full_disk_on_one_rank_is_reported_and_loses_nothing(refusals: int, saved: bool, tmp_path: Path):
    for result in on_ranks(2, trained, str(tmp_path / "run"), refusals):
        assert result["steps"] == STEPS
        assert (result["checkpoints"]["last_step"] == STEPS) is saved, result["checkpoints"]
        assert bool(result["unsaved"]) is not saved, result["unsaved"]
    records = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    saves = [record for record in records if record["record"] == "checkpoint"]
    failures = [record["failed"] for record in saves if "failed" in record]
    assert failures
    assert all(f"rank 1 on {socket.gethostname()}: the disk is full" in text for text in failures)
    store = CheckpointStore(tmp_path / "run/checkpoints")
    newest = store.latest()
    assert newest is not None
    assert newest.step == max(record["step"] for record in saves if "failed" not in record)
    assert not list(store.folder.glob(".*"))
