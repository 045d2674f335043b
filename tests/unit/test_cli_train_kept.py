"""Exit code 0 means: what was asked is on the disk. Everything else has a code and a sentence."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

import gpuwise
from gpuwise.cli.main import main
from gpuwise.errors import RunEndedError
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.checkpoint import CheckpointStore
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.run import summary

torch = pytest.importorskip("torch")

JOB = """
import os, sys
import torch
from gpuwise import Job

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
calls = [0]

def at(step, what):
    calls[0] = 0
    def loss(model, batch):
        if model.training and type(batch["x"]) is torch.Tensor and batch["x"].device.type == "cpu":
            calls[0] += 1
            if calls[0] == step:
                what()
        return model(batch["x"]).square().mean()
    return loss

def job_of(loss=None, **more):
    fields = dict(name="tiny", model=lambda: torch.nn.Linear(4, 1), batch=lambda n: {"x": torch.zeros(n, 4)},
                  loss=loss or at(0, None), data=lambda: {"x": X}, samples=64)
    return Job(**(fields | more))

def throw(error):
    raise error

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("not even that")

class Rows(torch.utils.data.Dataset):
    def __init__(self, end):
        self.end = end
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info():
            self.end()
        return {"x": X[index]}

job = job_of()
averaged = job_of(ema_decay=0.5)
exits = job_of(at(5, lambda: sys.exit(0)))
interrupts = job_of(at(5, lambda: throw(KeyboardInterrupt())))
closes = job_of(at(5, lambda: throw(GeneratorExit())))
unprintable = job_of(at(5, lambda: throw(Unprintable())))
worker_exits = job_of(data=lambda: Rows(lambda: sys.exit(0)))
worker_ends = job_of(data=lambda: Rows(lambda: os._exit(0)))
model_exits = job_of(model=lambda: sys.exit("no model"))
judged = job_of(evaluate=lambda model: {"score": float("nan")})
evaluation_exits = job_of(evaluate=lambda model: sys.exit(0))

def function_exits():
    sys.exit(0)
"""
TRAIN = ("--steps", "6", "--micro-batch", "8", "--precision", "fp32")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(JOB)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def train(job: str, *more: str):
    return run("train", f"tiny.py:{job}", *TRAIN, *more)


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in CheckpointStore(folder / "checkpoints").all()]


# --- what could not be saved


def test_a_small_checkpoint_is_made_where_the_usual_margin_is_not_free(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Files, "free_bytes", lambda self, where: 1_000_000)
    assert train("job", "--run", "r").exit_code == 0
    assert steps(folder / "r") == [6]


def test_a_last_checkpoint_that_cannot_be_made_has_its_own_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(Files, "free_bytes", lambda self, where: 1000)
        result = train("job", "--run", "r", "--export", "w.safetensors", "--json")
    assert result.exit_code == 3
    actual = json.loads(result.stdout)
    assert (actual["steps"], actual["stopped"]) == (6, "finished")
    assert actual["unsaved"] == [actual["checkpoints"]["problem"]]
    assert "no checkpoint of step 6: the disk is nearly full" in result.stderr
    assert "There is no older one." in result.stderr
    assert "--resume" in result.stderr
    assert (folder / "w.safetensors").is_file()  # the weights that were trained are there all the same
    assert train("job", "--run", "r").exit_code == 0
    assert steps(folder / "r") == [6]


def test_the_last_checkpoint_takes_the_room_of_an_older_one_where_it_must(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert train("job", "--run", "r").exit_code == 0
    assert run("train", "tiny.py:job", "--steps", "7", *TRAIN[2:], "--run", "r").exit_code == 0
    assert steps(folder / "r") == [7, 6]
    kept = folder / "r" / "checkpoints"
    monkeypatch.setattr(Files, "free_bytes", lambda self, where: 10**6 if len(list(kept.iterdir())) < 2 else 0)
    assert run("train", "tiny.py:job", "--steps", "8", *TRAIN[2:], "--run", "r").exit_code == 0
    assert steps(folder / "r") == [8, 7]


@pytest.mark.parametrize("what", ["report", "log"])
def test_so_has_a_report_or_a_log(what: str, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "report":
        monkeypatch.setattr(summary, "written_whole", full)
    elif not Path("/dev/full").exists():
        pytest.skip("a device of Linux")
    result = train("job", "--run", "r", *(("--log", "/dev/full") if what == "log" else ()))
    assert result.exit_code == 3
    assert "No space left on device" in result.stderr
    assert "tiny trained on cpu" in result.stdout


def test_parameters_that_are_no_numbers_are_not_saved_and_it_is_told(monkeypatch: pytest.MonkeyPatch):
    """The very last update makes them so: no loss tells of it."""
    monkeypatch.setattr(Program, "parameters_are_finite", lambda self: False)
    result = train("job", "--run", "r", "--json")
    assert result.exit_code == 3
    assert "its parameters are no longer finite numbers" in json.loads(result.stdout)["unsaved"][0]


def test_metrics_that_are_no_numbers_cost_no_checkpoint(folder: Path):
    assert train("judged", "--run", "r").exit_code == 0
    assert steps(folder / "r") == [6]


# --- jobs that end the program


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("exits", r"tiny failed in step 5 \(.*tiny.py:\d+\): it ended the program with sys.exit\(0\)"),
        ("interrupts", "tiny failed in step 5 .*: KeyboardInterrupt"),
        ("closes", "tiny failed in step 5 .*: GeneratorExit"),
        ("unprintable", "tiny failed in step 5 .*: Unprintable."),
        ("model_exits", r"sys.exit\(no model\)"),
        ("function_exits", "raised when called: SystemExit: 0"),
    ],
)
def test_a_job_that_ends_the_program_has_failed(job: str, said: str, folder: Path):
    result = train(job, "--run", "r")
    assert result.exit_code == 2
    assert re.search(said, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("job", ["worker_exits", "worker_ends"])
def test_so_has_one_whose_worker_ends(job: str):
    result = train(job, "--no-run", "--loader-workers", "1")
    assert result.exit_code == 2
    assert "worker" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_evaluation_that_ends_the_program_costs_no_run(folder: Path):
    result = train("evaluation_exits", "--run", "r")
    assert result.exit_code == 0
    assert "failed in evaluation" in result.stdout.replace("\n", " ")
    assert steps(folder / "r") == [6]


def test_no_verb_succeeds_when_the_job_ends_the_program():
    result = run("forecast", "tiny.py:model_exits", "--on", "t4")
    assert result.exit_code == 2
    assert "sys.exit(no model)" in result.stderr


# --- exports of runs that have ended


def test_export_of_a_finished_run_exports(folder: Path):
    assert train("averaged", "--run", "r", "--export", "first.safetensors").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (folder / "r").rglob("*")}
    result = train("averaged", "--run", "r", "--export", "again.safetensors")
    assert result.exit_code == 0, result.stderr
    assert "its weights are exported to" in result.stdout
    first, again = load_file(folder / "first.safetensors"), load_file(folder / "again.safetensors")
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    saved = load_file(folder / "r" / "checkpoints" / "step-00000006" / "model.safetensors")
    assert first["weight"].tolist() != saved["weight"].tolist()  # averages
    actual = json.loads(train("averaged", "--run", "r", "--export", "third.safetensors", "--json").stdout)
    assert actual["exported"] == str(folder / "third.safetensors")
    after = {path: path.stat().st_mtime_ns for path in (folder / "r").rglob("*")}
    assert {path: time for path, time in after.items() if path.name not in ("lock", "r")} == {
        path: time for path, time in before.items() if path.name not in ("lock", "r")
    }


def test_without_export_it_says_what_would(folder: Path):
    assert train("job", "--run", "r").exit_code == 0
    result = train("job", "--run", "r")
    assert result.exit_code == 2
    assert "has taken all of its 6 steps" in result.stderr
    assert "--export FILE" in result.stderr


def test_export_in_python(folder: Path):
    trainer = gpuwise.Trainer("tiny.py:job", steps=6, micro_batch=8, run="r", progress="silent")
    with pytest.raises(gpuwise.InputError, match="there are no weights in"):
        trainer.export("early.safetensors")
    trainer.run()
    expected = load_file(trainer.export("w.safetensors"))
    again = gpuwise.Trainer("tiny.py:job", steps=6, micro_batch=8, run="r", progress="silent")
    assert torch.equal(load_file(again.export("x.safetensors"))["weight"], expected["weight"])
    with pytest.raises(RunEndedError):
        again.run()
    # Of another length: Python takes a file of the same size and second for the one it has compiled.
    (folder / "tiny.py").write_text(JOB.replace("Linear(4, 1)", "Linear(4, 20)"))
    with pytest.raises(gpuwise.JobError, match="run of another job"):
        gpuwise.Trainer("tiny.py:job", steps=6, micro_batch=8, run="r", progress="silent").export("y.safetensors")
