"""Where the files of a verb go: to the folder it was started in, whatever the job does to the working folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main

pytest.importorskip("torch")

# It changes the working folder when it is loaded, when its data is opened, and in its third step.
JOB = """
import os
import torch
from gpuwise import Job

def away(name):
    os.makedirs(name, exist_ok=True)
    os.chdir(name)

away("loaded")
calls = [0]

def loss(model, batch):
    if model.training and type(batch["x"]) is torch.Tensor and batch["x"].device.type == "cpu":
        calls[0] += 1
        if calls[0] == 3:
            away("stepped")
    return model(batch["x"]).square().mean()

job = Job(
    name="moves", model=lambda: torch.nn.Linear(4, 1), batch=lambda n: {"x": torch.zeros(n, 4)}, loss=loss, samples=64,
    data=lambda: (away("opened"), {"x": torch.randn(64, 4, generator=torch.Generator().manual_seed(0))})[1],
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moves.py").write_text(JOB)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def files(folder: Path) -> set[str]:
    """Relative names of all files but those of the checkpoints."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "checkpoints" not in path.parts}


TRAIN = ("train", "moves.py:job", "--epochs", "2", "--micro-batch", "8", "--precision", "fp32")


def test_a_job_that_changes_the_folder_takes_nothing_along(folder: Path):
    result = run(*TRAIN, "--run", "r", "--export", "out/w.safetensors", "--json")
    assert result.exit_code == 0, result.output
    assert Path.cwd() != folder
    actual = json.loads(result.stdout)
    assert (actual["run_folder"], actual["log_path"]) == (str(folder / "r"), str(folder / "r" / "log.jsonl"))
    kept = {"r/lock", "r/log.jsonl", "r/report.html", "r/run.json", "r/state.json", "out/w.safetensors", "moves.py"}
    assert {name for name in files(folder) if "__pycache__" not in name} == kept
    assert [path.name for path in (folder / "r" / "checkpoints").iterdir()] == ["step-00000016"]


def test_without_a_name_the_run_is_in_runs_of_the_folder_it_began_in(folder: Path):
    result = json.loads(run(*TRAIN, "--log", "my.jsonl", "--json").stdout)
    assert (result["run_folder"], result["log_path"]) == (str(folder / "runs" / "moves"), str(folder / "my.jsonl"))
    assert (folder / "runs" / "moves" / "checkpoints" / "step-00000016" / "manifest.json").is_file()


def test_bad_batches_are_named_in_the_runs_folder(folder: Path):
    text = JOB.replace("square().mean()", "square().mean() * (float('nan') if calls[0] == 5 else 1.0)")
    (folder / "moves.py").write_text(text)
    assert run(*TRAIN, "--run", "r").exit_code == 2
    assert (folder / "r" / "bad-batch.json").is_file()


def test_in_python_too(folder: Path):
    trainer = gpuwise.Trainer("moves.py:job", run="runs/x", log="x.jsonl", steps=9, micro_batch=8, progress="silent")
    assert trainer.folder == folder / "runs" / "x"
    result = trainer.run()
    assert (result.run_folder, result.log_path) == (str(folder / "runs" / "x"), str(folder / "x.jsonl"))
    assert (folder / "x.jsonl").is_file()
    assert not (Path(os.getcwd()) / "runs").exists()


def test_plans_recordings_and_pictures_are_written_where_the_verb_began(folder: Path):
    assert run("plan", "moves.py:job", "--epochs", "1", "--on", "t4", "-o", "plan.toml").exit_code == 0
    os.chdir(folder)
    assert run("record", "moves.py:job", "-o", "moves.npz").exit_code == 0
    os.chdir(folder)
    assert run("forecast", "moves.py:job", "--on", "t4", "--memory-plot", "memory.svg").exit_code == 0
    assert {"plan.toml", "moves.npz", "memory.svg"} <= files(folder)


def test_a_job_that_moved_is_found_again(folder: Path):
    """What traces a job may load it a second time."""
    first = gpuwise.forecast("moves.py:job", on="t4")
    assert Path.cwd() == folder / "loaded"
    assert gpuwise.forecast("moves.py:job", on="t4").step_time_s == first.step_time_s
