"""The learning rate over a run."""

import math

import pytest
import torch
from tests.training_samples import toy, train
from torch import nn

from gpuwise.errors import JobError
from gpuwise.runtime.run.schedule import LearningRate, factor_of


def factors(steps=100, **job):
    factor = factor_of(toy(**job), steps)
    return [factor(step) for step in range(steps)]


def test_constant_is_one():
    assert set(factors()) == {1.0}


def test_cosine_falls_to_a_tenth():
    result = factors(schedule="cosine")
    assert result[0] == 1.0
    assert result[50] == pytest.approx(0.55)
    assert result[-1] == pytest.approx(0.1, abs=1e-3)
    assert result == sorted(result, reverse=True)


def test_linear_falls_to_nothing():
    result = factors(schedule="linear")
    assert (result[0], result[50]) == (1.0, 0.5)
    assert result[-1] == pytest.approx(0.01)


def test_wsd_stays_then_falls_over_the_last_fifth():
    result = factors(schedule="wsd")
    assert set(result[:81]) == {1.0}
    assert result[85] == pytest.approx(1 - math.sqrt(0.25))
    assert 0 < result[-1] < 0.05


def test_warmup_rises_and_the_schedule_follows_it():
    result = factors(schedule="linear", warmup_steps=10)
    assert result[:10] == [pytest.approx((step + 1) / 10) for step in range(10)]
    assert result[10] == 1.0
    assert result[55] == pytest.approx(0.5)


def test_warmup_longer_than_the_run():
    assert factors(steps=4, schedule="cosine", warmup_steps=8) == [0.125, 0.25, 0.375, 0.5]


def test_a_function_of_ones_own():
    assert factors(steps=4, schedule=lambda step, steps: 1 + step / steps) == [1, 1.25, 1.5, 1.75]


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, "1"])
def test_a_function_that_gives_no_factor(value):
    with pytest.raises(JobError, match=r"schedule gave .* at step 0"):
        train(toy(schedule=lambda step, steps: value), steps=2)


def test_each_group_keeps_its_own_rate():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": torch.tensor(0.5)}], lr=9.0, foreach=False)
    held = optimizer.param_groups[1]["lr"]
    rate = LearningRate(optimizer, lambda step: 1 / (1 + step))
    rate.set(1)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[1]["lr"] is held
    assert held.item() == 0.25
    assert rate.value == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "steep"},
        {"warmup_steps": -1},
        {"warmup_steps": 1.5},
        {"clip_norm": 0},
        {"clip_norm": math.nan},
        {"ema_decay": 1.0},
        {"ema_decay": 0},
    ],
)
def test_senseless_fields(changes):
    with pytest.raises(JobError):
        toy(**changes)
