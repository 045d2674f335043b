"""How threads wait is set before PyTorch is loaded, unless the user has chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuwise.hardware.waiting import BLAS_CHOICE, CHOICES, idle_threads_asleep, passive_waiting, wait_passively, waiting_is_set
from gpuwise.measure.child import answers

JOB = """
import json, os, sys
import torch
from gpuwise import Job
print(json.dumps({name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}), file=sys.stderr)
job = Job(lambda: torch.nn.Linear(4, 1), lambda n: torch.zeros(n, 4), lambda model, batch: model(batch).sum(), samples=8)
"""
PYTHON = "import sys{first}; import gpuwise; gpuwise.train('waits.py:job', steps=1, progress='silent')"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)


def test_what_the_user_chose_stands(monkeypatch: pytest.MonkeyPatch):
    assert passive_waiting() == {"OMP_WAIT_POLICY": "passive"}
    assert not waiting_is_set()
    for name in CHOICES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "")
            assert passive_waiting() == {}
            assert waiting_is_set()


def test_threads_of_timed_fits_sleep_unless_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(BLAS_CHOICE, raising=False)
    assert idle_threads_asleep() == {"OMP_WAIT_POLICY": "passive", "OPENBLAS_THREAD_TIMEOUT": "4"}
    monkeypatch.setenv(BLAS_CHOICE, "20")
    assert idle_threads_asleep() == {"OMP_WAIT_POLICY": "passive"}


def test_nothing_is_set_where_it_would_be_too_late(monkeypatch: pytest.MonkeyPatch):
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setitem(sys.modules, "torch", sys)
    wait_passively()
    assert environment == {}
    monkeypatch.delitem(sys.modules, "torch")
    wait_passively()
    assert environment == {"OMP_WAIT_POLICY": "passive"}


@pytest.mark.parametrize(
    ("command", "variables", "policy"),
    [
        (["-m", "gpuwise", "train", "waits.py:job", "--steps", "1", "--no-run"], {}, "passive"),
        pytest.param(
            ["-m", "gpuwise", "train", "waits.py:job", "--steps", "1", "--no-run"],
            {"OMP_WAIT_POLICY": "active"},
            "active",
            marks=pytest.mark.slow,
        ),
        pytest.param(["-c", PYTHON.format(first="")], {}, "passive", marks=pytest.mark.slow),
        (["-c", PYTHON.format(first=", torch")], {}, None),
    ],
    ids=["command", "chosen", "python", "python with PyTorch loaded"],
)
def test_the_process_that_trains_waits_passively(
    command: list[str], variables: Mapping[str, str], policy: str | None, tmp_path: Path
):
    pytest.importorskip("torch")
    (tmp_path / "waits.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"OMP')]
    assert seen[0]["OMP_WAIT_POLICY"] == policy


def test_children_that_measure_wait_passively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a_child.py").write_text(
        "import os\nfrom gpuwise.measure.child import WorkerConnection\n"
        "WorkerConnection().send(policy=os.environ.get('OMP_WAIT_POLICY'))\n"
    )
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    assert next(answers("a_child", {}, environment=path)) == {"policy": "passive"}
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    assert next(answers("a_child", {}, environment=path)) == {"policy": None}
