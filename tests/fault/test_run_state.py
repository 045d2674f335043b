"""RUN/state.json of trainings that are stopped, killed, refused or fail: what a wrapper reads afterwards."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main
from gpuwise.errors import GpuwiseError
from gpuwise.results.run_status import DONE, FAILED, INTERRUPTED, RunStatus
from gpuwise.runs import attempt
from gpuwise.runs.state_file import run_status, write_status
from gpuwise.runtime.checkpoint.files import Files

JOB = """
import os, signal, torch
from gpuwise import Job

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
calls = 0

def loss(model, batch):
    global calls
    value = model(batch["x"]).square().mean()
    if model.training and type(batch["x"]) is torch.Tensor and batch["x"].device.type == "cpu":
        calls += 1
        what, at = os.environ.get("FAULT", "nothing 0").split()
        if calls == int(at):
            if what == "nan":
                value = value * float("nan")
            elif what == "raise":
                raise ValueError("a bad day")
            elif what == "twice":
                os.kill(os.getpid(), signal.SIGUSR1)
                os.kill(os.getpid(), signal.SIGTERM)
            elif what.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, what))
    return value

job = Job(name="tiny", model=lambda: torch.nn.Linear(4, 1), batch=lambda n: {"x": torch.zeros(n, 4)}, loss=loss,
          data=lambda: {"x": X}, samples=64)
"""
TRAIN = ("train", "tiny.py:job", "--micro-batch", "8", "--precision", "fp32", "--run", "r")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(JOB)
    return tmp_path


def train(*flags: str, steps: int = 12):
    return CliRunner().invoke(main, [*TRAIN, "--steps", str(steps), *flags])


def status_of(exit_code: int, state: str, kind: str | None = None) -> RunStatus:
    """The state after `gpuwise train` has ended with an exit code; as the command has it, too."""
    status = run_status("r")
    assert (status.exit_code, status.state, status.reason and status.reason.kind) == (exit_code, state, kind)
    assert CliRunner().invoke(main, ["state", "r"]).stdout == f"{state}\n"
    return status


def test_a_signal_leaves_an_interrupted_run_that_goes_on_to_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULT", "SIGTERM 5")
    assert train().exit_code == 130
    status = status_of(130, INTERRUPTED, "signal")
    assert status.reason is not None
    assert (status.reason.text, status.step, status.steps, status.checkpoint_step) == ("SIGTERM", 5, 12, 5)
    monkeypatch.delenv("FAULT")
    assert train().exit_code == 0
    status = status_of(0, DONE)
    assert (status.step, status.checkpoint_step, status.attempts) == (12, 12, 2)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP"])
def test_a_signal_before_the_first_step_leaves_nothing_or_a_run_that_goes_on(name: str, folder: Path):
    """As while PyTorch loads, or the step is recorded: exit code 130, which wrappers start again. The job sends it here."""
    before = signal.signal(getattr(signal, name), signal.SIG_DFL)
    sends = f"import os, signal\nif 'EARLY' in os.environ:\n    os.kill(os.getpid(), signal.{name})\n"
    (folder / "tiny.py").write_text(sends + JOB)
    try:
        with pytest.MonkeyPatch.context() as early:
            early.setenv("EARLY", "1")
            assert train().exit_code == 130
            assert not (folder / "r").exists()
        with pytest.MonkeyPatch.context() as later:
            later.setenv("FAULT", "SIGINT 4")
            assert train().exit_code == 130
            later.setenv("EARLY", "1")
            assert train().exit_code == 130
        assert status_of(130, INTERRUPTED, "signal").step == 4
        assert train().exit_code == 0
        assert status_of(0, DONE).step == 12
        assert signal.getsignal(getattr(signal, name)) is signal.SIG_DFL
    finally:
        signal.signal(getattr(signal, name), before)


def test_a_time_limit_and_a_loop_that_is_left_can_go_on():
    assert train("--time-limit", "0.05s", steps=1_000_000).exit_code == 130
    status_of(130, INTERRUPTED, "time limit")
    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(attempt.Attempt, "elapsed_s", 3600.0)  # of its preparation
        before = run_status("r").step
        assert train("--time-limit", "1h", steps=1_000_000).exit_code == 130
        assert run_status("r").step == before + 1
    trainer = gpuwise.Trainer("tiny.py:job", micro_batch=8, precision="fp32", steps=1_000_000, run="r", progress="silent")
    for _ in trainer:
        break
    status_of(130, INTERRUPTED, "left")


def test_a_second_signal_ends_unsaved_and_can_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULT", "twice 5")
    assert train().exit_code == 143
    status = status_of(143, INTERRUPTED, "signal")
    assert status.checkpoint_step is None


def test_a_loss_that_is_not_a_number_has_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULT", "nan 5")
    assert train().exit_code == 2
    status = status_of(2, FAILED, "bad-job")
    assert status.reason is not None
    assert "loss" in status.reason.text


def test_a_job_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULT", "raise 5")
    assert train().exit_code == 2
    assert "ValueError: a bad day" in str(status_of(2, FAILED, "bad-job").reason)


def test_what_fails_in_its_first_step_leaves_no_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULT", "raise 1")
    assert train().exit_code == 2
    assert not Path("r").exists()
    assert CliRunner().invoke(main, ["state", "r"]).exit_code == 2


@pytest.mark.parametrize(
    "flags", [("--seed", "1"), ("--micro-batch", "16"), ("--no-resume",), ("--keep", "1"), ("--mesh", "dp=2,pp=9")]
)
def test_a_start_that_is_refused_ends_the_chain_of_restarts(flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """torchrun would make 1 of its exit code; a wrapper that read "interrupted" would start it for ever."""
    monkeypatch.setenv("FAULT", "SIGTERM 5")
    assert train().exit_code == 130
    monkeypatch.delenv("FAULT")
    assert train(*flags).exit_code == 2
    assert run_status("r").state == FAILED
    assert train().exit_code == 0
    status_of(0, DONE)


def test_a_run_that_is_done_stays_done():
    assert train().exit_code == 0
    assert train().exit_code == 2  # RunEndedError
    status_of(0, DONE)
    assert train("--seed", "1").exit_code == 2
    assert run_status("r").state == DONE


def test_a_damaged_state_stops_no_training():
    assert train().exit_code == 0
    Path("r/state.json").write_bytes(b"\0" * 100)
    assert CliRunner().invoke(main, ["state", "r"]).exit_code == 2
    assert train(steps=14).exit_code == 0
    assert status_of(0, DONE).attempts == 1


def full_for(monkeypatch: pytest.MonkeyPatch, calls: set[int] | None) -> list[RunStatus]:
    """The disk is full in these writes of the state; None: in all. Returns what was to be written."""
    written: list[RunStatus] = []

    def write(folder: Path, status: RunStatus) -> None:
        written.append(status)
        if calls is None or len(written) in calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_status(folder, status)

    monkeypatch.setattr(attempt, "write_status", write)
    return written


def test_a_disk_that_is_full_for_a_while_costs_no_step(monkeypatch: pytest.MonkeyPatch):
    full_for(monkeypatch, {1, 2})
    assert train().exit_code == 0
    assert status_of(0, DONE).checkpoint_step == 12


def test_a_state_that_cannot_be_written_to_the_end_is_reported_and_may_go_on(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setenv("FAULT", "SIGTERM 5")
        assert train().exit_code == 130
    with monkeypatch.context() as patch:
        full_for(patch, None)
        result = train("--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["unsaved"] == ["the state of the run could not be written: No space left on device."]
    assert run_status("r").state == INTERRUPTED  # of the attempt before: started again, it is done at once
    assert train().exit_code == 2
    status_of(2, DONE)


def test_a_last_checkpoint_that_cannot_be_written_has_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Files, "free_bytes", lambda self, where: 1000)
    assert train().exit_code == 3
    status = status_of(3, FAILED, "not-saved")
    assert (status.step, status.checkpoint_step) == (12, None)


def test_the_state_of_a_killed_run_names_its_newest_checkpoint(folder: Path):
    """SIGKILL at some moment: the checkpoint named is there, and the run goes on from one that is at least as new."""
    command = [sys.executable, "-m", "gpuwise", *TRAIN, "--steps", "1000000", "--save-every", "0.01s"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                if run_status("r").checkpoint_step:
                    break
            except GpuwiseError:  # it has not begun
                time.sleep(0.02)  # for another process, which gives no other sign
        assert run_status("r").state == "running"
    finally:
        process.kill()
        process.wait()
    status = run_status("r")
    assert (status.state, status.pid, status.exit_code) == (INTERRUPTED, process.pid, None)
    assert status.checkpoint_step is not None
    assert train("--resume", "--time-limit", "0.01s", steps=1_000_000).exit_code == 130
    records = [json.loads(line) for line in Path("r/log.jsonl").read_text().splitlines()]
    (resumed,) = [record["step"] for record in records if record["record"] == "resumed"]
    assert resumed >= status.checkpoint_step
    assert run_status("r").attempts == 2
