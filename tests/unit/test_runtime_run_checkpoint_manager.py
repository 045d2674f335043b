"""When a run is saved."""

from __future__ import annotations

import time

import pytest
import torch
from tests.fault.checkpoint_faults import Quick

from gpuwise.runtime.checkpoint import store
from gpuwise.runtime.run import checkpoint_manager

STATE = {"model": {"weight": torch.zeros(3)}}


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "Files", Quick)

    def made(save_every_s=None):
        return checkpoint_manager.CheckpointManager(
            tmp_path / "checkpoints", torch.device("cpu"), keep=2, save_every_s=save_every_s, interruptions_per_day=None
        )

    return made


def test_the_first_save_is_early_and_the_next_as_its_cost_says(checkpoints):
    checkpoints = checkpoints()
    checkpoints.started(now_s=1000.0)
    assert checkpoints.due_s == 1030.0
    checkpoints.save(1, STATE, {}, best=False, wait=False)
    assert checkpoints.due_s == float("inf")  # none while one is written
    checkpoints.wait()
    began_s = time.perf_counter()
    ((record, text),) = checkpoints.look(now_s=began_s)
    assert record["step"] == 1
    assert text.startswith("a checkpoint every")
    assert checkpoints.due_s - began_s == pytest.approx(record["interval_s"], abs=5)
    assert record["interval_s"] != 30.0
    checkpoints.save(2, STATE, {}, best=False, wait=True)
    ((record, text),) = checkpoints.look(now_s=began_s)
    assert (record["step"], text) == (2, "")  # said once
    assert checkpoints.summary()["last_step"] == 2


def test_as_often_as_asked(checkpoints):
    checkpoints = checkpoints(7.0)
    checkpoints.started(now_s=0.0)
    assert checkpoints.due_s == 7.0
    checkpoints.save(1, STATE, {}, best=False, wait=True)
    before_s = time.perf_counter()
    checkpoints.look(now_s=before_s)
    assert checkpoints.due_s == pytest.approx(before_s + 7.0, abs=5)
    assert checkpoints.summary()["interval_s"] == 7.0


def test_a_save_that_failed_is_tried_again_an_interval_later(checkpoints):
    checkpoints = checkpoints()
    checkpoints.started(now_s=0.0)
    checkpoints.save(1, {"model": {"weight": object()}}, {}, best=False, wait=False)
    ((record, text),) = checkpoints.look(now_s=50.0)
    assert "no checkpoint of step 1" in text
    assert record == {"step": 1, "failed": text}
    assert checkpoints.due_s == 80.0
    assert checkpoints.problem == text
