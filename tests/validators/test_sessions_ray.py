"""A launch on a real cluster of Ray, one of whose workers is killed: bash tests/validators/sessions.sh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.launch_samples import DIGITS

import gpuwise
from gpuwise.plan import Plan, save_plan
from gpuwise.strategy import Mesh

pytest.importorskip("ray", reason="sessions-requirements.txt")
pytestmark = pytest.mark.slow

STEPS, PORT, DASHBOARD = 200, 6399, 8266
BIN = Path(sys.executable).parent
SOURCES = Path(gpuwise.__file__).parents[1]
LONGEST_S = 280


def processes() -> Iterator[tuple[int, list[str], dict[str, str]]]:
    """Those of this machine: number, arguments, environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(folder.name), argv, dict(pair.split("=", 1) for pair in pairs if "=" in pair)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of clients of a cluster of one node with three CPUs."""
    home = tmp_path_factory.mktemp("r")  # Ray's sockets have short names
    variables = {
        **os.environ,
        "HOME": str(home),  # Ray writes a token there
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCES),
        "RAY_AUTH_MODE": "disabled",
        "RAY_DISABLE_USAGE_STATS": "1",
        "RAY_ADDRESS": f"http://127.0.0.1:{DASHBOARD}",
        "SESSIONS_CLUSTER": str(home),
    }
    flags = ["--num-cpus", "3", "--port", str(PORT), "--dashboard-port", str(DASHBOARD), "--temp-dir", str(home / "t")]
    start = ["ray", "start", "--head", "--node-ip-address", "127.0.0.1", *flags]
    try:
        subprocess.run(start, env=variables, check=True, capture_output=True, timeout=120)
        yield variables
    finally:
        for pid, _, environment in list(processes()):
            if environment.get("SESSIONS_CLUSTER") == str(home):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def two_ranks() -> Plan:
    best = gpuwise.plan(DIGITS, on="cpu", own=["cpu:1"], epochs=1).best
    strategy = best.strategy.but(mesh=Mesh(dp_replicate=2))
    return replace(best, steps=STEPS, strategy=strategy, count=2, offer=replace(best.offer, count=0))


def tensors(run: Path) -> dict[str, bytes]:
    files = (run / "checkpoints" / f"step-{STEPS:08}").glob("*.safetensors")
    return {file.name: file.read_bytes() for file in files}


def kill_a_worker(run: Path, job: subprocess.Popen[str]) -> int:
    """Kills the worker of rank 1 once there is a checkpoint; the step of that."""
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s and job.poll() is None:
        if steps := [int(each.parent.name[5:]) for each in run.glob("checkpoints/step-*/manifest.json")]:
            for pid, argv, environment in processes():
                if "train" in argv and str(run) in argv and environment.get("RANK") == "1":
                    status = Path(f"/proc/{pid}/status").read_text()
                    worker = int(status.partition("PPid:")[2].split()[0])
                    assert "ray::RayTrainWorker" in Path(f"/proc/{worker}/cmdline").read_text()
                    os.kill(worker, signal.SIGKILL)
                    return max(steps)
        time.sleep(0.01)
    raise AssertionError(f"no checkpoint: {job.communicate()[0]}")


@pytest.mark.timeout(600)
def test_a_job_whose_worker_is_killed_ends_as_one_that_was_left_alone(tmp_path, cluster):
    plan, run, out = two_ranks(), tmp_path / "run", tmp_path / "out"
    submit = gpuwise.launch(plan, to="ray", output=out, run=str(run), env=["A=$(touch hacked) '\n\""]).submit
    content = json.loads((out / "ray_launch.json").read_text())
    content["argv"] += ["--save-every", "0.5s"]  # a plan of hours saves by itself often enough
    (out / "ray_launch.json").write_text(json.dumps(content))
    with subprocess.Popen(submit, cwd=out, env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        step = kill_a_worker(run, job)
        printed = job.communicate(timeout=LONGEST_S)[0]
    assert job.returncode == 0, printed
    assert f"{run} is done" in printed
    assert "continues the run in" in printed
    assert 0 < step < STEPS
    save_plan(plan, tmp_path / "plan.toml")
    alone = [sys.executable, "-m", "gpuwise", "train", DIGITS, "--plan", "plan.toml", "--run", "alone"]
    subprocess.run(alone, cwd=tmp_path, env=cluster, check=True, capture_output=True)
    assert tensors(run) == tensors(tmp_path / "alone")
    assert len(tensors(run)) >= 3
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.timeout(600)
def test_a_mistake_of_the_user_is_not_tried_again(tmp_path, cluster):
    submit = gpuwise.launch(two_ranks(), to="ray", output=tmp_path / "out", run=str(tmp_path / "run")).submit
    content = json.loads((tmp_path / "out" / "ray_launch.json").read_text())
    content["argv"] += ["--monitor", "nonsense"]
    (tmp_path / "out" / "ray_launch.json").write_text(json.dumps(content))
    done = subprocess.run(submit, cwd=tmp_path / "out", env=cluster, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 1
    assert done.stdout.count("Started training worker group of size 2") >= 1
    assert "RuntimeError: rank" not in done.stdout
