"""Under --json stdout has the JSON alone, whatever the user's code prints and however."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main

pytest.importorskip("torch")

# It prints by Python, by C (whose buffer is written when the process ends), to the descriptor, in a worker process, and at
# the very end.
JOB = """
import atexit, ctypes, os, sys
import torch
from gpuwise import Job

own_process = "pytest" not in sys.modules  # else all but the first line would land in what pytest prints

def say(what):
    print("python", what)
    if own_process:
        sys.__stdout__.write("the stream from before\\n")
        os.write(1, b"descriptor\\n")
        ctypes.CDLL(None).puts(b"C")

say("loading")
if own_process:
    atexit.register(say, "at exit")

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        say("reading")
        return {"x": torch.full((4,), index / 64)}

def loss(model, batch):
    print("loss")
    return model(batch["x"]).square().mean()

job = Job(name="talks", model=lambda: (print("model"), torch.nn.Linear(4, 1))[1],
          batch=lambda n: (print("batch"), {"x": torch.zeros(n, 4)})[1], loss=loss, data=Rows, samples=64)
"""
TRAIN = ("train", "talks.py:job", "--steps", "2", "--micro-batch", "8", "--precision", "fp32", "--no-run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.py").write_text(JOB)
    return tmp_path


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpuwise", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="calls the C library of POSIX")
@pytest.mark.parametrize(
    "arguments",
    [(*TRAIN, "--loader-workers", "1"), pytest.param(("forecast", "talks.py:job", "--on", "t4"), marks=pytest.mark.slow)],
)
def test_stdout_is_json_alone(arguments: tuple[str, ...]):
    done = process(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == "talks"
    for text in ("python loading", "python at exit", "the stream from before", "descriptor", "C"):
        assert text in done.stderr.splitlines()
    if "--loader-workers" in arguments:
        assert "python reading" in done.stderr.splitlines()


def test_so_is_an_error():
    done = process("train", "talks.py:nothing", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "bad-job"


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "talks.py:job", "--on", "t4"),
        ("compare", "talks.py:job", "--on", "t4,rtx-4090"),
        ("plan", "talks.py:job", "--epochs", "1", "--on", "t4"),
        ("forecast", "talks.py:job", "--on", "t4"),
        ("chips", "4090"),
        TRAIN,
    ],
)
def test_of_every_verb(arguments: tuple[str, ...]):
    before = sys.stdout, sys.stderr
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)
    assert (sys.stdout, sys.stderr) == before


def test_without_json_the_job_prints_to_stdout():
    assert "loss" in CliRunner().invoke(main, list(TRAIN)).stdout.splitlines()


def test_help_is_on_stdout_all_the_same():
    assert CliRunner().invoke(main, ["train", "--json", "--help"]).stdout.startswith("Usage:")


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no such device")
def test_the_log_goes_to_a_pipe(folder: Path):
    """Into the pipe and, to be read again, into the run's folder."""
    done = process(*TRAIN[:-1], "--run", "r", "--log", "/dev/stdout")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"record"')]
    assert [json.loads(line)["record"] for line in lines][-1] == "summary"
    assert lines == (folder / "r" / "log.jsonl").read_text().splitlines()
    assert (folder / "r" / "report.html").is_file()
    refused = process(*TRAIN, "--log", "/dev/stdout", "--json")
    assert refused.returncode == 2
    assert "stdout to itself" in json.loads(refused.stdout)["error"]["message"]
