"""Stopping: the first signal ends the run after its step, the second at once; what was logged stays whole."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from gpuwise.job import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.interruption import signals
from gpuwise.runtime.show import read_log
from gpuwise.strategy import Strategy

STRATEGY = Strategy(micro_batch=4)
JOB = Job(
    model=lambda: nn.Linear(3, 1),
    batch=lambda n: torch.randn(n, 3),
    loss=lambda model, x: model(x).square().mean(),
    data=lambda: torch.zeros(40, 3),
    name="toy",
    evaluate=lambda model: {"asked": 1.0},
)


@pytest.fixture(autouse=True)
def _signals_arrive(monkeypatch):
    """A shell starts background commands with SIGINT ignored, which a run rightly respects. Signals follow each other here
    faster than anybody sends them."""
    monkeypatch.setattr(signals, "SAME_REQUEST_S", 0.0)
    before = {number: signal.getsignal(number) for number in signals.STOP_SIGNALS}
    for number in signals.STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def trained(job=JOB, *, steps=50, at=None, send=(), **settings):
    """The result of a run that is sent signals after step `at`."""
    training = Training(job, STRATEGY, TrainSettings(steps=steps, progress="silent", preemption="none", **settings))
    for step in training:
        if step.step == at:
            for number in send:
                signal.raise_signal(number)
    return training.result


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_first_signal_finishes_the_step(number, tmp_path):
    before = signal.getsignal(number)
    path = tmp_path / "log.jsonl"
    result = trained(at=3, send=[number], log_path=path)
    assert result.interrupted
    assert result.steps == 3
    assert result.metrics == {}
    records = read_log(path)
    assert [r["record"] for r in records if r["record"] != "step"] == ["header", "interrupted", "summary"]
    assert records[-2]["why"] == number.name
    assert records[-1]["interrupted"] is True
    assert signal.getsignal(number) is before


def test_a_signal_inside_a_step_waits_for_its_end():
    def loss(model, x):
        signal.raise_signal(signal.SIGINT)
        return model(x).square().mean()

    result = trained(Job(model=JOB.model, batch=JOB.batch, loss=loss, data=JOB.data))
    assert result.interrupted
    assert result.steps == 1


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_second_signal_ends_at_once(number, error, tmp_path):
    before = signal.getsignal(number)
    path = tmp_path / "log.jsonl"
    calls = []

    def loss(model, x):
        calls.append(x)
        if len(calls) == 3:
            signal.raise_signal(number)
            signal.raise_signal(number)
        return model(x).square().mean()

    with pytest.raises(error):
        trained(Job(model=JOB.model, batch=JOB.batch, loss=loss, data=JOB.data), log_path=path)
    assert len(calls) == 3
    assert signal.getsignal(number) is before
    assert read_log(path)[-1] | {"time": ""} == {"record": "interrupted", "time": "", "at_once": True}


def test_handlers_are_restored_when_the_job_fails():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        trained(Job(model=JOB.model, batch=JOB.batch, loss=lambda model, x: 1 / 0, data=JOB.data))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_told_to_be_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    result = trained(steps=5, at=2, send=[signal.SIGINT])
    assert result.steps == 5
    assert not result.interrupted


def test_works_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(trained, steps=3).result()
    assert result.steps == 3
    assert signal.getsignal(signal.SIGINT) is before
    assert threading.current_thread() is threading.main_thread()


def test_interrupted_evaluation_keeps_the_run(tmp_path):
    def evaluate(model):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return {"never": 1.0}

    job = Job(model=JOB.model, batch=JOB.batch, loss=JOB.loss, data=JOB.data, evaluate=evaluate)
    result = trained(job, steps=3, log_path=tmp_path / "log.jsonl")
    assert result.metrics == {}
    *records, last = read_log(tmp_path / "log.jsonl")
    assert any("evaluation was interrupted" in record.get("text", "") for record in records)
    assert last["record"] == "summary"


def test_the_end_of_a_slurm_job_ends_the_run_before_it(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 4))  # less than what is kept free
    result = trained()
    assert result.steps < 50
    assert result.stopped == "time limit"


KILLED = """
import os, signal, sys, time, torch
from pathlib import Path
from torch import nn
from gpuwise.job import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.strategy import Strategy
job = Job(model=lambda: nn.Linear(3, 1), batch=lambda n: torch.randn(n, 3), loss=lambda m, x: m(x).square().mean(),
          data=lambda: torch.zeros(40, 3))
settings = TrainSettings(steps=50, progress="silent", preemption="none", log_path=Path(sys.argv[1]))
for step in Training(job, Strategy(micro_batch=4), settings):
    if step.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    records = [json.loads(line) for line in path.read_text().splitlines()]  # what was written is whole
    assert records[0]["record"] == "header"
