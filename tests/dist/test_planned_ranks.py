"""`gpuwise train` of several ranks on this machine: of a plan, with their forecast, or the reason why it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import JOB
from safetensors.torch import load_file

import gpuwise
from gpuwise.plan import save_plan
from gpuwise.runtime.ranks.start import start_ranks


def train(folder: Path, *flags: str, job: str = "small.py:job") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuwise", "train", job, *flags]
    variables = {**os.environ, "GPUWISE_NO_CACHE": "1"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=240)


@pytest.fixture
def planned(tmp_path: Path) -> gpuwise.Plan:
    """One pass over the data in steps of 16 samples, on this machine."""
    (tmp_path / "small.py").write_text(JOB.replace('os.environ["RANK"]', 'os.environ.get("RANK")'))
    return gpuwise.plan(f"{tmp_path}/small.py:job", samples=64, on="here", precision="fp32", global_batch=16).best


def test_the_ranks_of_a_plan_are_started_and_export_one_model(planned: gpuwise.Plan, tmp_path: Path):
    halves = planned.strategy.but(mesh=gpuwise.Mesh(dp_shard=2), micro_batch=8, accumulation=1)
    save_plan(replace(planned, strategy=halves, count=2), tmp_path / "plan.toml")
    ended = train(tmp_path, "--plan", "plan.toml", "--json", "--run", "run", "--export", "of_ranks.safetensors")
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    assert (result["steps"], result["samples"]) == (4, 64)
    assert result["strategy"]["mesh"]["dp_shard"] == 2
    assert result["forecast"]["forecast_s"] > 0
    assert "2 ranks share this CPU" in " ".join(result["notes"])
    alone = gpuwise.Trainer(
        f"{tmp_path}/small.py:job", steps=4, micro_batch=16, precision="fp32", compile=False, progress="silent"
    )
    assert result["last_loss"] == pytest.approx(alone.run().last_loss, rel=1e-5)
    torch.testing.assert_close(
        load_file(tmp_path / "of_ranks.safetensors"),
        load_file(alone.export(tmp_path / "alone.safetensors")),
        rtol=1e-5,
        atol=1e-7,
    )


def test_the_threads_of_ranks_are_theirs_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    assert start_ranks(["-c", "import os; assert os.environ['OMP_NUM_THREADS'] == '3'"], ranks=2, threads=3) == 0
    assert dict(os.environ) == before


def test_a_plan_for_devices_that_are_not_here_starts_nothing(planned: gpuwise.Plan, tmp_path: Path):
    eight = planned.strategy.but(mesh=gpuwise.Mesh(dp_shard=8), micro_batch=2, accumulation=1)
    save_plan(replace(planned, strategy=eight, device="h100-80gb-sxm", count=8), tmp_path / "plan.toml")
    ended = train(tmp_path, "--plan", "plan.toml", "--no-run")
    assert ended.returncode == 2
    assert "this plan is for 8 x h100-80gb-sxm" in ended.stderr
    assert "gpuwise plan small.py:job" in ended.stderr or "--on here" in ended.stderr


@pytest.mark.slow
def test_the_forecast_beside_the_steps_is_of_a_recorded_rank(tmp_path: Path):
    """Context parallelism cannot be composed from a recording of one length. Rank 0 records before ranks are connected."""
    examples = Path(__file__).parents[2] / "examples"
    flags = ("--mesh", "cp=2", "--micro-batch", "1", "--steps", "2", "--no-run", "--json")
    ended = train(tmp_path, *flags, job=f"{examples}/char_gpt.py:job")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["forecast"]["forecast_s"] > 0
    assert "no forecast" not in ended.stderr


def test_weights_that_no_rank_could_export_are_not_trained(planned: gpuwise.Plan, tmp_path: Path):
    ended = train(tmp_path, "--mesh", "dp=2", "--micro-batch", "8", "--no-run", "--export", "weights.safetensors")
    assert ended.returncode == 2
    assert "Several ranks export the weights of a checkpoint, and --no-run keeps none." in ended.stderr
    assert "step 1" not in ended.stderr
