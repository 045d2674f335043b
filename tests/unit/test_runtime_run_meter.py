"""The clock of a run: what counts as training and what does not."""

from types import SimpleNamespace

import pytest

from gpuwise.results.training import WARMUP_STEPS
from gpuwise.runtime.run import meter as meter_module
from gpuwise.runtime.run.meter import Meter

DATA_S, STEP_S = 0.25, 0.75


class Run:
    """A meter's run on a clock that the test moves."""

    def __init__(self, steps):
        self.now_s = 0.0
        self.meter = Meter(steps=steps, global_batch=8)

    def step(self, count=1, *, callers_s=0.0):
        for _ in range(count):
            self.now_s += DATA_S
            self.meter.begin()
            self.now_s += STEP_S
            self.meter.end()
            self.meter.leave()
            self.now_s += callers_s
            self.meter.back()


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(meter_module, "time", SimpleNamespace(perf_counter=lambda: run.now_s))
    run = SimpleNamespace(now_s=0.0)
    run = Run(steps=20)
    run.meter.fetch()
    return run


def test_a_run_that_does_nothing_else(run):
    run.step(10)
    assert (run.meter.steps_per_s, run.meter.data_share) == (1.0, DATA_S)
    assert (run.meter.recent_step_time_s, run.meter.wall_s, run.meter.remaining_s) == (STEP_S, 10.0, 10.0)


@pytest.mark.parametrize("callers_s", [0.5, 100.0])
def test_what_the_caller_does_between_steps_is_not_training(run, callers_s):
    run.step(10, callers_s=callers_s)
    assert (run.meter.steps_per_s, run.meter.data_share) == (1.0, DATA_S)
    assert run.meter.wall_s == 10.0 + 9 * callers_s


@pytest.mark.parametrize("after", [WARMUP_STEPS + 1, 10])
def test_an_evaluation_is_not_training_whenever_the_pace_is_asked_for(run, after):
    run.step(after)
    run.now_s += 1000.0
    run.meter.pause(1000.0)
    assert run.meter.steps_per_s == 1.0  # as of the latest step, which came before it
    run.meter.fetch()
    run.step(2)
    assert (run.meter.steps_per_s, run.meter.data_share) == (1.0, DATA_S)


def test_while_it_warms_up_all_steps_count(run):
    run.step(2)
    assert (run.meter.steps_per_s, run.meter.data_share) == (1.0, 0.0)
