"""Runs that `gpuwise train --mesh` has started, and ranks of another launcher, as processes: for tests of faults."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

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
STARTED: list[subprocess.Popen[str]] = []  # by the test that runs; conftest.py ends those that it leaves


def start(folder: Path, *flags: str, steps: int = 1_000_000, **environment: str) -> subprocess.Popen[str]:
    """The command line: the launcher, or a rank where the environment says so."""
    if not (folder / "small.py").exists():
        (folder / "small.py").write_text(JOB)
    command = [sys.executable, "-m", "gpuwise", "train", "small.py:job", "--mesh", "dp=2", "--micro-batch", "8"]
    command += ["--steps", str(steps), "--run", "run", "--save-every", "1s", *flags]
    variables = {**os.environ, "GPUWISE_NO_CACHE": "1", **environment}
    pipe = subprocess.PIPE
    STARTED.append(subprocess.Popen(command, cwd=folder, env=variables, stdout=pipe, stderr=pipe, text=True))
    return STARTED[-1]


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


def start_rank(
    rank: int, folder: Path, *flags: str, port: int, steps: int = 1_000_000, **environment: str
) -> subprocess.Popen[str]:
    """One of two ranks on machines of their own, as a launcher of Kubernetes would start it."""
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return start(folder, *flags, steps=steps, **{**variables, **environment})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
