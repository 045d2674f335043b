"""`validate` on several ranks: the figures of all of them, and one clear end where a rank fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from launched import ENDED_S, gone
from tests.fresh_folder import fresh_folder

import gpuwise
from gpuwise.api import history
from gpuwise.cli.main import main
from gpuwise.errors import InputError
from gpuwise.results.validation import FAILED, MEASURED, OUT_OF_MEMORY

JOBS = """
import os, signal, torch
from gpuwise import Job

RANK = os.environ.get("RANK")  # None in the process that forecasts

def make(fault=lambda: None):
    def loss(model, batch):
        y = model(batch["x"]).square().mean()
        if RANK is not None:
            open(f"rank-{RANK}", "w").write(str(os.getpid()))
        if RANK == "1":
            fault()
        return y
    return Job(model=lambda: torch.nn.Linear(64, 8), batch=lambda n: {"x": torch.randn(n, 64)}, loss=loss, name="tiny")

def fine():
    return make()

def killed():
    return make(lambda: os.kill(os.getpid(), signal.SIGKILL))

def raising():
    def fault():
        raise ValueError("the sky fell")
    return make(fault)

def short_of_memory():
    def fault():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return make(fault)
"""
PARAMETERS = 64 * 8 + 8


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_folder(tmp_path, monkeypatch, JOBS)


def test_each_rank_is_measured_beside_the_forecast(folder: Path):
    command = ["validate", "jobs.py:fine", "--mesh", "dp=2", "--micro-batch", "8", "--steps", "3"]
    done = CliRunner().invoke(main, [*command, "--json", "--report", "page.md"])
    assert done.exit_code == 0, done.output
    (trial,) = json.loads(done.stdout)["trials"]
    assert (trial["outcome"], trial["threads"]) == ("measured", 1)
    assert trial["forecast"]["strategy"]["mesh"]["dp_replicate"] == 2
    assert trial["forecast"]["count"] == 2
    measured = trial["measured"]
    assert measured["step"]["rounds"] == 3
    assert [rank["rank"] for rank in measured["ranks"]] == [0, 1]
    assert measured["step"]["median_s"] == max(rank["median_s"] for rank in measured["ranks"])
    assert measured["memory_bytes"] == max(rank["memory_bytes"] for rank in measured["ranks"])
    assert measured["by_category"]["parameter"] == 4 * PARAMETERS
    assert "| rank |" in (folder / "page.md").read_text()
    assert "steps of several ranks are not kept" in done.stderr
    assert history.entries() == []  # what one device took is another step


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_and_the_other_jobs_go_on(folder: Path):
    names = ["jobs.py:killed", "jobs.py:raising", "jobs.py:short_of_memory", "jobs.py:fine"]
    result = gpuwise.validate(names, steps=3, micro_batch=8, mesh="dp_shard=2")
    killed, raising, short, fine = result.trials
    assert killed.outcome == FAILED
    assert "rank 1 on " in killed.message
    assert "was killed by SIGKILL" in killed.message
    assert not any("checkpoint" in way or "restart" in way for way in killed.ways_out)
    assert raising.outcome == FAILED
    assert "rank 1 on " in raising.message
    assert "ValueError: the sky fell" in raising.message
    assert "jobs.py:25" in raising.message
    assert short.outcome == OUT_OF_MEMORY
    assert "rank 1 on " in short.message
    assert fine.outcome == MEASURED
    assert gone([int((folder / f"rank-{rank}").read_text()) for rank in (0, 1)])


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks(folder: Path):
    command = [sys.executable, "-m", "gpuwise", "validate", "jobs.py:fine", "--mesh", "dp=2", "--steps", "1000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    files, until_s = [folder / f"rank-{rank}" for rank in (0, 1)], time.monotonic() + 200
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)  # for other processes
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=ENDED_S)
    assert process.returncode == 130
    assert "nothing was measured" in output
    assert "Traceback" not in errors
    assert gone([int(file.read_text()) for file in files])


def test_what_makes_no_sense_starts_nothing(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="the suite runs at settings of its own; it takes no --mesh"):
        gpuwise.validate(suite=True, mesh="dp=2")
    with pytest.raises(InputError, match="'banana' is not an axis"):
        gpuwise.validate("jobs.py:fine", mesh="banana")
    monkeypatch.setattr("gpuwise.runtime.devices.accelerator", lambda: __import__("torch").device("cuda", 0))
    monkeypatch.setattr("gpuwise.runtime.devices.Backend.count", lambda _: 2)
    with pytest.raises(InputError, match="the mesh dp=4 is of 4 devices; this machine has 2 of type cuda") as caught:
        gpuwise.validate("jobs.py:fine", mesh="dp=4")
    assert caught.value.ways_out[0] == "--mesh dp=2"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(InputError, match="is a rank of another launcher"):
        gpuwise.validate("jobs.py:fine", mesh="dp=2")
