"""What is written for Kubernetes, Kubeflow and SkyPilot, run by a stand-in kubelet on this machine: taken away, gone on, equal.

The long form trains two ranks in containers of their own and takes a few minutes:
python -m pytest -m slow tests/dist/test_launched_in_pods.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cloud_launches import FILES, IMAGE, plan_at, written
from tests.launch_samples import DIGITS
from tests.stand_in_kubelet import CONTAINER, Cluster, JobSetRun, SkyRun, jobset_run, sky_run

import gpuwise

EPOCHS, RUN = 8, "digits-job"
# In the place of `python`: a training that writes down how it was started, saves when it is stopped, and is done the next time.
_TRAINING = r"""#!/bin/bash
case "$*" in
  *" state "*) cat "${!#}/state" ;;
  *--help) echo --shutdown-timeout ;;
  *)
    run="${*: -1}"
    becomes() { echo "$1" >"$run/state.$PET_NODE_RANK"; mv "$run/state.$PET_NODE_RANK" "$run/state"; }  # the other pod reads it
    echo "$PET_NODE_RANK $PET_MASTER_ADDR $PET_MASTER_PORT $(getent hosts "$PET_MASTER_ADDR" | head -n 1)" >>"$run/starts"
    [ -e "$run/saved" ] && becomes done && exit 0
    trap 'becomes interrupted; touch "$run/saved"; exit 1' TERM
    touch "$run/ready.$PET_NODE_RANK"
    while :; do read -rt 0.02 <> <(:); done ;;
esac
"""


def contained() -> bool:
    """Whether this machine allows containers without a daemon."""
    try:
        done = subprocess.run([*CONTAINER, "name", "/etc/hosts", "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


pytestmark = pytest.mark.skipif(not contained(), reason="user namespaces are not allowed here")


def cluster(folder: Path, *programs: Path) -> Cluster:
    folder.mkdir()
    path = ":".join(map(str, [*programs, Path(sys.executable).parent, os.environ["PATH"]]))
    source = str(Path(gpuwise.__file__).parent.parent)
    quiet = {"GPUWISE_NO_CACHE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder)}
    return Cluster(folder, {"PATH": path, "PYTHONPATH": source, **quiet})


def started(to: str, launched: Path, where: Cluster) -> JobSetRun | SkyRun:
    return sky_run(where, launched) if to == "skypilot" else jobset_run(where, (launched / FILES[to]).read_text())


@pytest.mark.parametrize("to", ["kubernetes", "kubeflow"])
def test_an_evicted_pod_saves_and_all_pods_start_again(tmp_path: Path, to: str):
    """As the first processes of their containers, to which no signal means anything unless it is handled."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").write_text(_TRAINING)
    (programs / "python").chmod(0o755)
    written(plan_at(machines=2), to, tmp_path / "out", restarts=0, install="none")
    where = cluster(tmp_path / "cluster", programs)
    run = where.folder / "volumes" / "runs" / "gpt2"

    def both_train() -> bool:
        return all((run / f"ready.{rank}").exists() for rank in range(2))

    assert started(to, tmp_path / "out", where).until_over(disrupt=[both_train]) == "Completed", where.log()
    first, second = where.attempts
    assert [pod.code for pod in first] == [130, 130]
    assert [pod.code for pod in second] == [0, 0]
    assert where.counted == 0
    starts = [line.split() for line in (run / "starts").read_text().splitlines()]
    assert sorted(words[0] for words in starts) == ["0", "0", "1", "1"]
    assert {words[3] for words in starts} == {"127.0.0.1"}  # the first pod's name is one that pods can look up


def test_a_failure_counts_and_ends_the_set(tmp_path: Path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").write_text("#!/bin/bash\n[[ $* == *--help ]] && exit 0\n[[ $* == *state* ]] && echo failed\nexit 4\n")
    (programs / "python").chmod(0o755)
    written(plan_at(machines=2), "kubernetes", tmp_path / "out", restarts=2)
    where = cluster(tmp_path / "cluster", programs)
    assert started("kubernetes", tmp_path / "out", where).until_over(disrupt=[]) == "Failed"
    assert (len(where.attempts), where.counted) == (3, 3)
    # The other pod has failed alike, or was ended with it: by bash, by a signal, or before its container had begun.
    assert all(4 in [pod.code for pod in pods] and None not in [pod.code for pod in pods] for pods in where.attempts)


@pytest.fixture(scope="module")
def digits() -> gpuwise.Plan:
    """examples/digits.py on two machines of one rank each."""
    plan = gpuwise.plan(DIGITS, epochs=EPOCHS, on="here", precision="fp32").best
    return replace(plan, strategy=plan.strategy.but(mesh=gpuwise.Mesh(dp_replicate=2)), count=2, machines=2)


def launched(plan: gpuwise.Plan, to: str, folder: Path) -> Path:
    if to == "skypilot":
        plan = replace(plan, offer=replace(plan.offer, **{"provider": "aws", "instance": "m7i.large", "terms": "spot"}))
        gpuwise.launch(plan, to=to, output=folder, install="none", set=["volume=runs"], run=str(folder.parent / "volume" / RUN))
    else:
        gpuwise.launch(plan, to=to, output=folder, install="none", set=["volume=runs"], image=IMAGE)
    return folder


def weights(folder: Path) -> bytes:
    """Of the last step, wherever below the folder the run is."""
    return max(folder.rglob("model.rank-00000.safetensors")).read_bytes()


@pytest.fixture(scope="module")
def left_alone(digits: gpuwise.Plan, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("alone")
    where = cluster(folder / "cluster")
    assert started("kubernetes", launched(digits, "kubernetes", folder / "out"), where).until_over(disrupt=[]) == "Completed"
    return weights(folder)


def after(folder: Path, steps: int) -> Callable[[], bool]:
    def reached() -> bool:
        logs = list(folder.rglob("log.jsonl"))
        lines = logs[0].read_text().splitlines() if logs else []
        return any(json.loads(line).get("step", 0) >= steps for line in lines if line.endswith("}"))

    return reached


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("to", "taken_after"), [("kubernetes", [1, 100]), ("kubeflow", [100]), ("skypilot", [1])])
def test_a_run_that_is_taken_away_ends_as_one_that_was_left_alone(to, taken_after, digits, left_alone, tmp_path):
    where = cluster(tmp_path / "cluster")
    run = started(to, launched(digits, to, tmp_path / "out"), where)
    assert run.until_over(disrupt=[after(tmp_path, steps) for steps in taken_after]) == "Completed", where.log()
    codes = [[pod.code for pod in pods] for pods in where.attempts]
    if to == "skypilot":  # the machine is gone without a signal; what the other one saves then is its own matter
        assert codes[0][0] == -9
    else:
        assert codes[:-1] == [[130, 130]] * len(taken_after)
    assert codes[-1] == [0, 0]
    assert where.counted == 0
    assert weights(tmp_path) == left_alone
