"""Faults of ranks that `gpuwise train --mesh` has started: one message names the rank, and nothing hangs or stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = """
import os, torch
from torch import nn
from gpuwise import Job

calls = 0

def loss(model, batch):
    global calls
    calls += 1
    fault, rank = os.environ.get("FAULT", " ").split(" ")
    if calls == 5 and rank == os.environ["RANK"]:
        if fault == "raise":
            raise ValueError("a bad day")
        if fault == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if fault == "exit":
            os._exit(7)
    return (model(batch["x"]) - batch["y"]).square().mean()

data = {"x": torch.linspace(0, 1, 256).view(64, 4), "y": torch.linspace(0, 1, 64).view(64, 1)}
job = Job(model=lambda: nn.Linear(4, 1), batch=lambda n: {"x": torch.rand(n, 4), "y": torch.rand(n, 1)}, loss=loss,
          data=lambda: data, optimizer="adamw", learning_rate=1e-3, name="small")
"""
ENDED_S = 60.0  # all ranks end within a minute of a fault


def start(folder: Path, *flags: str, steps: int = 1_000_000, **environment: str) -> subprocess.Popen[str]:
    (folder / "small.py").write_text(JOB)
    command = [sys.executable, "-m", "gpuwise", "train", "small.py:job", "--mesh", "dp=2", "--micro-batch", "8"]
    command += ["--steps", str(steps), "--run", "run", "--save-every", "1s", *flags]
    variables = {**os.environ, "GPUWISE_NO_CACHE": "1", **environment}
    return subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks_of(process: subprocess.Popen[str], folder: Path) -> list[int]:
    """The pids of the ranks, once a checkpoint is on the disk."""
    until_s = time.monotonic() + 200
    while not list((folder / "run/checkpoints").glob("step-*[0-9]")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)  # for another process, which gives no sign of this but its files
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def errors_of(process: subprocess.Popen[str], timeout_s: float = 250) -> list[str]:
    """The lines with an error; the process has ended."""
    _, text = process.communicate(timeout=timeout_s)
    return [line for line in text.splitlines() if line.startswith("error:") or "Traceback" in line]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGSTOP, "has not answered for")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_lost_ends_all_with_its_name(number: signal.Signals, words: str, rank: int, tmp_path: Path):
    process = start(tmp_path)
    pids = ranks_of(process, tmp_path)
    os.kill(pids[rank], number)
    began_s = time.monotonic()
    (error,) = errors_of(process)
    assert f"rank {rank} on " in error
    assert words in error
    assert process.returncode == 4
    assert time.monotonic() - began_s < ENDED_S
    assert gone(pids)


@pytest.mark.slow
def test_a_lost_rank_is_started_again_from_the_last_checkpoint(tmp_path: Path):
    process = start(tmp_path, "--max-restarts", "1")
    first = ranks_of(process, tmp_path)
    os.kill(first[1], signal.SIGKILL)
    log = tmp_path / "run/log.jsonl"
    until_s = time.monotonic() + 200
    while '"record": "resumed"' not in log.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert errors_of(process) == []
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words", "code"),
    [
        ("raise 1", "rank 1 on .*small failed in step 5 .*ValueError: a bad day", 2),
        ("memory 0", "rank 0 on .*ran out of memory", 2),
        ("exit 1", "rank 1 on .*ended with exit code 7", 4),
    ],
)
def test_a_rank_that_fails_ends_all_with_its_error(fault: str, words: str, code: int, tmp_path: Path):
    import re

    process = start(tmp_path, FAULT=fault)
    (error,) = errors_of(process)
    assert re.search(words, error), error
    assert process.returncode == code


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused(tmp_path: Path):
    first = start(tmp_path)
    ranks_of(first, tmp_path)
    (error,) = errors_of(start(tmp_path))
    assert "is in use by process" in error
    first.send_signal(signal.SIGTERM)
    assert errors_of(first) == []
    assert first.returncode == 130


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (("--save-every", "soon"), {}, "soon"),
        ((), {"WORLD_SIZE": "2"}, "RANK is not set"),
        ((), {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}, "3 ranks"),
    ],
)
def test_what_cannot_start_is_refused_before(flags: tuple[str, ...], environment: dict[str, str], words: str, tmp_path: Path):
    process = start(tmp_path, *flags, **environment)
    (error,) = errors_of(process)
    assert words in error
    assert process.returncode == 2
    assert not (tmp_path / "run").exists()
