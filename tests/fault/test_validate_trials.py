"""Trials in real child processes: one that is fine, one whose job raises, one that is killed, one too large for any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fresh_folder import fresh_folder

import gpuwise
from gpuwise.api import history, validating, validating_checks
from gpuwise.api.validating import Doing
from gpuwise.cli.main import main
from gpuwise.errors import InputError
from gpuwise.measure.child import ChildDiedError
from gpuwise.results.validation import FAILED, MEASURED, OUT_OF_MEMORY

pytest.importorskip("torch")

JOBS = """
import os, signal, torch
from gpuwise import Job

def make(loss):
    return Job(model=lambda: torch.nn.Linear(64, 8), batch=lambda n: {"x": torch.randn(n, 64)}, loss=loss, name="tiny")

def for_real(y):  # the forecast runs the job on tensors without data
    return type(y).__name__ != "FakeTensor"

def fine():
    return make(lambda model, batch: model(batch["x"]).square().mean())

def killed():
    def loss(model, batch):
        y = model(batch["x"]).mean()
        if for_real(y):
            os.kill(os.getpid(), signal.SIGKILL)
        return y
    return make(loss)

def raising():
    def loss(model, batch):
        y = model(batch["x"]).mean()
        if for_real(y):
            raise ValueError("the sky fell")
        return y
    return make(loss)

def huge():
    def loss(model, batch):
        return (model(batch["x"]).mean(1, keepdim=True).expand(-1, 2**50 // len(batch["x"])) * 1.0).mean()
    return make(loss)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fresh_folder(tmp_path, monkeypatch, JOBS)


@pytest.mark.slow
def test_what_becomes_of_a_trial_is_its_outcome_and_the_others_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(validating, "oom_kills", lambda: None)  # as where the system does not count
    monkeypatch.setattr(validating, "disturbances", lambda before, after: [])  # other tests run beside this one
    messages: list[Doing] = []
    names = ["jobs.py:killed", "jobs.py:raising", "jobs.py:huge", "jobs.py:fine"]
    result = gpuwise.validate(names, steps=3, micro_batch=8, on_progress=messages.append)
    killed, raising, huge, fine = result.trials
    assert [trial.job for trial in result.trials] == names

    assert killed.outcome == OUT_OF_MEMORY
    assert "SIGKILL" in killed.message
    assert killed.foreseen is False
    assert raising.outcome == FAILED
    assert "jobs.py:26" in raising.message
    assert "ValueError: the sky fell" in raising.message
    assert huge.outcome == OUT_OF_MEMORY
    assert huge.foreseen is True

    assert fine.outcome == MEASURED
    assert fine.measured.step.rounds == 3
    assert abs(fine.memory_error) < 0.01 or fine.device != "cpu"
    assert fine.forecast["strategy"]["micro_batch"] == 8
    assert result.failed
    assert not result.interrupted
    assert [doing.number for doing in messages if doing.trial] == [1, 2, 3, 4]

    kept = history.entries()
    assert [(entry.job, entry.digest, entry.steps) for entry in kept] == [("tiny", fine.digest, 3)]
    assert result.history == str(history.path())
    # Another process, which traced it by itself, knows the step again.
    forecast = gpuwise.forecast("jobs.py:fine", on="here:1", micro_batch=8)
    assert forecast.step_time_s.value == fine.measured.step.median_s
    assert forecast.provenance["step_time_s"] == "measured here"


def test_a_member_of_the_suite_on_the_command_line(folder: Path):
    with open(folder / "xdg_state_home", "w"):  # where the history's folder would be
        done = CliRunner().invoke(main, ["validate", "--suite", "digits-cnn", "--steps", "2", "--json", "--report", "page.md"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    (trial,) = result["trials"]
    assert (trial["job"], trial["outcome"]) == ("digits-cnn", "measured")
    assert abs(trial["memory_error"]) < 0.01 or trial["device"] != "cpu"
    assert result["suite"] is True
    assert result["history"] == ""
    assert "the history cannot be kept" in done.stderr
    assert "1/1 digits-cnn" in done.stderr
    assert "digits-cnn" in (folder / "page.md").read_text()


def test_a_kill_that_the_system_did_not_count_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch):
    def dies(*_: object, **__: object):
        yield {"doing": "forecast"}
        raise ChildDiedError("the trial was killed by SIGKILL, as the system does where memory is used up.", signal=9)

    monkeypatch.setattr(validating, "answers", dies)
    for counts, outcome in (([7, 7], FAILED), ([7, 8], OUT_OF_MEMORY), ([None, None], OUT_OF_MEMORY)):
        monkeypatch.setattr(validating, "oom_kills", iter(counts).__next__)
        assert gpuwise.validate("gpt2").trials[0].outcome == outcome


def test_a_child_that_says_nothing_or_dies_late(monkeypatch: pytest.MonkeyPatch):
    def hangs(*_: object, **__: object):
        yield {"doing": "forecast"}
        raise ChildDiedError("the trial said nothing for 600 s and was ended.")

    monkeypatch.setattr(validating, "answers", hangs)
    trial = gpuwise.validate("gpt2").trials[0]
    assert (trial.outcome, trial.message) == (FAILED, "the trial said nothing for 600 s and was ended.")


def test_ctrl_c_keeps_what_is_done_and_ends_the_child(monkeypatch: pytest.MonkeyPatch):
    closed = []

    def answers(_: str, request: dict[str, object], **__: object):
        try:
            yield {"failed": {"code": "bad-job", "message": "no.", "ways_out": []}}
            if request["job"] == "gpt2":
                yield {"doing": "steps"}
        finally:
            closed.append(request["job"])

    def on_progress(doing: Doing) -> None:
        if doing.what == "steps":
            raise KeyboardInterrupt

    monkeypatch.setattr(validating, "answers", answers)
    result = gpuwise.validate(["resnet50", "gpt2", "dlrm"], on_progress=on_progress)
    assert result.interrupted
    assert [trial.job for trial in result.trials] == ["resnet50"]
    assert closed == ["resnet50", "gpt2"]
    monkeypatch.setattr(gpuwise.api, "validate", lambda *_, **__: result)
    assert CliRunner().invoke(main, ["validate", "resnet50"]).exit_code == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no job to validate"),
        (["resnet51"], "unknown preset 'resnet51'"),
        (["--suite", "resnet51"], "unknown member of the suite"),
        (["--suite", "--micro-batch", "2"], "it takes no --micro-batch"),
        (["--suite", "--mesh", "dp=2"], "it takes no --mesh"),
        (["gpt2", "--mesh", "dp=100000"], "is of 100000 devices"),
        (["gpt2", "--mesh", "dp"], "is not an axis and a degree"),
        (["gpt2", "--mesh", "dp_shard=2", "--offload", "optimizer"], "--offload"),
        (["gpt2", "--image-size", "64"], "gpt2 has no image size"),
        (["gpt2", "--micro-batch", "0"], "micro-batch must be"),
        (["gpt2", "--mode", "infer", "--accumulate", "2"], "no use for --accumulate"),
        (["gpt2", "--steps", "0"], "--steps must be"),
        (["saved.npz"], "it can be priced, not run"),
        (["none.py:job"], "there is no file 'none.py'"),
        (["gpt2", "--report", "page.pdf"], "a .md or .html file"),
        (["gpt2", "--report", "none/page.md"], "there is no folder"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(validating, "answers", None)
    done = CliRunner().invoke(main, ["validate", *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_a_job_object_cannot_travel():
    job = gpuwise.Job(model=lambda: None, batch=lambda n: None, loss=lambda model, batch: None)
    for jobs in (job, [job], 5):
        with pytest.raises(InputError, match="process of its own"):
            gpuwise.validate(jobs)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(validating_checks, "find_spec", lambda _: None)
    with pytest.raises(gpuwise.GpuwiseError, match="torch is needed to run gpt2"):
        gpuwise.validate("gpt2")
