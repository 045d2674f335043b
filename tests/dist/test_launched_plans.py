"""Launches for torchrun and ssh, run for real on this machine: signalled, started again, equal to a run that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launched import JOB, STARTED
from tests.launch_samples import Clients

import gpuwise

STEPS = 400


@pytest.fixture
def planned(tmp_path: Path) -> gpuwise.Plan:
    """Two ranks that share this CPU, for some seconds."""
    (tmp_path / "small.py").write_text(JOB.replace('os.environ["RANK"]', 'os.environ.get("RANK")'))
    plan = gpuwise.plan(f"{tmp_path}/small.py:job", samples=16 * STEPS, on="here", precision="fp32", global_batch=16).best
    halves = plan.strategy.but(mesh=gpuwise.Mesh(dp_replicate=2), micro_batch=8, accumulation=1)
    return replace(plan, strategy=halves, count=2)


def variables(**more: str) -> dict[str, str]:
    python = str(Path(sys.executable).parent)
    return {**os.environ, "GPUWISE_NO_CACHE": "1", "OMP_NUM_THREADS": "1", "PATH": f"{python}:{os.environ['PATH']}", **more}


def written(plan: gpuwise.Plan, folder: Path, to: str, **settings: object) -> Path:
    gpuwise.launch(plan, to=to, output=folder, env=["FAULT= "], **settings)  # type: ignore[arg-type]
    return folder


def start(folder: Path) -> subprocess.Popen[str]:
    STARTED.append(
        subprocess.Popen(
            ["bash", "launch.sh"], cwd=folder, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    )
    return STARTED[-1]


def wait_for_steps(run: Path, process: subprocess.Popen[str] | None = None) -> None:
    """Until the run has logged a step: another process gives no other sign of it."""
    until_s = time.monotonic() + 200
    while '"step"' not in (run / "log.jsonl").read_text() if (run / "log.jsonl").exists() else True:
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.02)


def state(run: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "gpuwise", "state", run], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def weights(run: Path) -> bytes:
    """Of the last step, as its checkpoint has them."""
    return (run / f"checkpoints/step-{STEPS:08}/model.rank-00000.safetensors").read_bytes()


@pytest.mark.slow
def test_a_signal_to_the_script_saves_and_the_script_goes_on(planned: gpuwise.Plan, tmp_path: Path):
    folder = written(planned, tmp_path / "one", "torchrun")
    first = start(folder)
    wait_for_steps(folder / "run", first)
    first.send_signal(signal.SIGTERM)
    text, _ = first.communicate(timeout=200)
    assert (first.returncode, state(folder / "run")) == (130, "interrupted"), text
    second = start(folder)
    text, _ = second.communicate(timeout=200)
    assert (second.returncode, state(folder / "run")) == (0, "done"), text
    alone = written(planned, tmp_path / "two", "torchrun")
    text, _ = start(alone).communicate(timeout=200)
    assert weights(folder / "run") == weights(alone / "run")


@pytest.mark.slow
def test_ssh_starts_stops_and_goes_on(planned: gpuwise.Plan, tmp_path: Path):
    clients = Clients(tmp_path / "clients")
    folder = written(planned, tmp_path / "out", "ssh", set=["hosts=me@node"])
    there = clients.home / "gpuwise" / "small-job"
    python = str(Path(sys.executable).parent)

    def run(word: str) -> str:
        path = f"{clients.folder}:{python}:{os.environ['PATH']}"
        done = clients.run("bash", "launch.sh", word, cwd=folder, **variables(PATH=path, HOME=str(clients.home)))
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("start")
    wait_for_steps(there / "run")
    assert run("log")
    run("stop")
    ended(there, "interrupted")
    run("start")
    ended(there, "done")
    assert weights(there / "run")


def ended(there: Path, word: str) -> None:
    """The script on the machine has ended, with the run in that state."""
    until_s = time.monotonic() + 200
    while Path(f"/proc/{(there / 'pid').read_text().strip()}").exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert state(there / "run") == word, (there / "log.txt").read_text()
