"""Stopping: the first signal ends the run after its step, the second at once; what was logged stays whole."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from gpuwise.job import Job
from gpuwise.runtime import train
from gpuwise.runtime.log import read_log
from gpuwise.strategy import Strategy

STRATEGY = Strategy(micro_batch=4)
JOB = Job(model=lambda: nn.Linear(3, 1), batch=lambda n: torch.randn(n, 3),
          loss=lambda model, x: model(x).square().mean(), data=lambda: torch.zeros(40, 3), name="toy",
          evaluate=lambda model: {"asked": 1.0})  # fmt: skip


@pytest.fixture(autouse=True)
def _signals_arrive():
    """A shell starts background commands with SIGINT ignored, which a run rightly respects."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signal_at(step, *numbers):
    def on_progress(update):
        if update.step == step:
            for number in numbers:
                signal.raise_signal(number)

    return on_progress


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_finishes_the_step(number, tmp_path):
    before = signal.getsignal(number)
    path = tmp_path / "log.jsonl"
    result = train(JOB, STRATEGY, steps=50, progress="silent", log_path=path, on_progress=signal_at(3, number))
    assert result.interrupted
    assert result.steps == 3
    assert result.metrics == {}
    assert [r["record"] for r in read_log(path)] == ["header", "step", "step", "step", "interrupted", "summary"]
    assert read_log(path)[-2]["signal"] == number.name
    assert read_log(path)[-1]["interrupted"] is True
    assert signal.getsignal(number) is before


def test_a_signal_inside_a_step_waits_for_its_end():
    def loss(model, x):
        signal.raise_signal(signal.SIGINT)
        return model(x).square().mean()

    job = Job(model=JOB.model, batch=JOB.batch, loss=loss, data=JOB.data)
    result = train(job, STRATEGY, steps=50, progress="silent")
    assert result.interrupted
    assert result.steps == 1


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_second_signal_ends_at_once(number, error, tmp_path):
    before = signal.getsignal(number)
    path = tmp_path / "log.jsonl"
    with pytest.raises(error):
        train(JOB, STRATEGY, steps=50, progress="silent", log_path=path, on_progress=signal_at(3, number, number))
    assert signal.getsignal(number) is before
    assert read_log(path)[-1] | {"time": ""} == {"record": "interrupted", "time": "", "at_once": True}


def test_handlers_are_restored_when_the_job_fails():
    before = signal.getsignal(signal.SIGINT)
    job = Job(model=JOB.model, batch=JOB.batch, loss=lambda model, x: 1 / 0, data=JOB.data)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        train(job, STRATEGY, steps=5, progress="silent")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_told_to_be_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = train(JOB, STRATEGY, steps=5, progress="silent", on_progress=signal_at(2, signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.steps == 5
    assert not result.interrupted


def test_works_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(train, JOB, STRATEGY, steps=3, progress="silent").result()
    assert result.steps == 3
    assert signal.getsignal(signal.SIGINT) is before
    assert threading.current_thread() is threading.main_thread()


def test_interrupted_evaluation_keeps_the_run(tmp_path):
    def evaluate(model):
        signal.raise_signal(signal.SIGINT)
        return {"never": 1.0}

    job = Job(model=JOB.model, batch=JOB.batch, loss=JOB.loss, data=JOB.data, evaluate=evaluate)
    result = train(job, STRATEGY, steps=3, progress="silent", log_path=tmp_path / "log.jsonl")
    assert result.metrics == {}
    assert "evaluation was interrupted" in result.notes[0]
    assert read_log(tmp_path / "log.jsonl")[-1]["record"] == "summary"


KILLED = """
import os, signal, sys, torch
from torch import nn
from gpuwise.job import Job
from gpuwise.runtime import train
from gpuwise.strategy import Strategy
job = Job(model=lambda: nn.Linear(3, 1), batch=lambda n: torch.randn(n, 3), loss=lambda m, x: m(x).square().mean(),
          data=lambda: torch.zeros(40, 3))
def kill(update):
    if update.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
train(job, Strategy(micro_batch=4), steps=50, progress="silent", log_path=sys.argv[1], on_progress=kill)
"""


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()[1:]]
    assert steps == [1, 2, 3, 4, 5, 6, 7]
