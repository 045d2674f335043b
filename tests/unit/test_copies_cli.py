"""`gpuwise train --copy-to`, and the keyword of the same name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main

JOB = """
import torch
from gpuwise import Job

def loss(model, batch):
    return model(batch["x"]).square().mean()

job = Job(name="small", model=lambda: torch.nn.Linear(4, 1), batch=lambda n: {"x": torch.zeros(n, 4)}, loss=loss,
          data=lambda: {"x": torch.linspace(0, 1, 256).view(64, 4)})
"""
FLAGS = ("--micro-batch", "8", "--precision", "fp32", "--no-compile", "--json")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(JOB)


def train(*flags: str):
    return CliRunner().invoke(main, ["train", "small.py:job", *FLAGS, *flags])


def test_another_machine_goes_on_and_reports_the_whole_run():
    first = train("--steps", "4", "--copy-to", "my bucket")
    assert first.exit_code == 0, first.output
    checkpoints = json.loads(first.stdout)["checkpoints"]
    assert (checkpoints["copied_step"], Path(checkpoints["copied_to"])) == (4, Path("my bucket").absolute())
    shutil.rmtree("runs")
    second = train("--steps", "6", "--copy-to", "my bucket", "--resume")  # --resume, though there is no runs/small
    assert second.exit_code == 0, second.output
    assert json.loads(second.stdout)["resumed_from"] == 4
    assert Path("runs/small/report.html").exists()
    shutil.rmtree("runs")
    result = gpuwise.train(
        "small.py:job", micro_batch=8, precision="fp32", compile=False, run="r", copy_to="my bucket", steps=7, progress="silent"
    )
    assert result.resumed_from == 6
    line = f"the one of step 7 to {Path('my bucket').absolute()}"
    assert "".join(line.split()) in "".join(str(result).split())  # wherever the lines break


def test_there_must_be_something_to_continue():
    refused = train("--steps", "4", "--copy-to", "bucket", "--resume")
    assert refused.exit_code == 2
    assert "nothing to continue" in refused.output


def test_what_is_not_copied_is_exit_code_3_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    def away(self, path):
        raise OSError(107, "Transport endpoint is not connected")

    monkeypatch.setattr("gpuwise.runtime.copies.mount.MountFiles.create", away)
    failed = train("--steps", "4", "--run", "r", "--copy-to", "bucket")
    assert failed.exit_code == 3
    assert "Transport endpoint is not connected; there is none before it." in failed.stderr
    assert "go on with --run" in failed.stderr
    again = train("--steps", "4", "--run", "r", "--copy-to", "bucket")
    assert again.exit_code == 3  # and says the same
    assert "is not complete" in again.stderr


def test_without_a_run_there_is_nothing_to_copy():
    refused = train("--steps", "4", "--no-run", "--copy-to", "bucket")
    assert refused.exit_code == 2
    assert "this run has none" in refused.stderr
