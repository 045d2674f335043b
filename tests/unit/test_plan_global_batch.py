"""The global batch where the user names none, and that `plan` and `train` choose the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuwise
from gpuwise import api
from gpuwise.plan.space.global_batch import TrainedOn, usual_global_batch

BILLION = 10**9


def batch(*, tokens: int | None, parameters: int, samples: int, data: int | None = None, trainable: int | None = None) -> int:
    return usual_global_batch(TrainedOn(tokens is not None, tokens or 1, parameters, trainable or parameters, samples, data))[0]


def test_fine_tuning_has_a_fine_tuners_batch():
    assert batch(tokens=1024, parameters=8 * BILLION, samples=10_000) == 16
    assert batch(tokens=1024, parameters=8 * BILLION, samples=10**8, trainable=10**7) == 16  # adapters
    assert batch(tokens=1024, parameters=8 * BILLION, samples=10**8) == 512  # half a million tokens
    assert batch(tokens=8192, parameters=8 * BILLION, samples=2_500_000) == 64
    assert batch(tokens=512, parameters=10**8, samples=10) == 8  # no more than there are


def test_short_samples_have_a_batch_that_leaves_steps():
    assert batch(tokens=None, parameters=25 * 10**6, samples=90 * 1_281_167, data=1_281_167) == 256
    assert batch(tokens=None, parameters=10**4, samples=1797) == 32
    assert batch(tokens=None, parameters=10**4, samples=100 * 1797, data=1797) == 32  # epochs do not change it
    assert batch(tokens=None, parameters=10**4, samples=10_000) == 64
    assert batch(tokens=None, parameters=10**4, samples=5) == 4


def test_the_rule_is_among_the_assumptions_of_a_plan():
    result = api.plan("llama2-7b", on="rtx-4090", samples="10k", adapter="qlora", recompute="full")
    assert result.best.strategy.global_batch == 16
    assert any("fine-tuning" in line and "--global-batch" in line for line in result.assumptions)


JOB = """
import torch
from torch import nn
import gpuwise

job = gpuwise.Job(
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)),
    batch=lambda n: {{"x": torch.randn(n, 8), "y": torch.zeros(n, 1)}},
    loss=lambda model, batch: nn.functional.mse_loss(model(batch["x"]), batch["y"]),
    data=lambda: [{{"x": torch.zeros(8), "y": torch.zeros(1)}} for _ in range({samples})],
    samples={samples}, name="tiny",
)
"""


@pytest.mark.filterwarnings("ignore:no forecast")
@pytest.mark.parametrize("samples", [400, 13_000])
def test_train_and_plan_without_flags_have_the_same_batch(samples: int, tmp_path: Path):
    path = tmp_path / "tiny.py"
    path.write_text(JOB.format(samples=samples))
    planned = gpuwise.plan(f"{path}:job", on="here").best.strategy
    trainer = gpuwise.Trainer(f"{path}:job", progress="silent")
    assert (trainer.strategy.micro_batch, trainer.strategy.accumulation) == (planned.micro_batch, planned.accumulation)
    assert trainer.strategy.global_batch == (32 if samples == 400 else 128)
    assert any("global batch" in reason for reason in trainer.reasons)
    named = gpuwise.Trainer(f"{path}:job", progress="silent", micro_batch=8)
    assert named.strategy.global_batch == 8
    assert not any("global batch" in reason for reason in named.reasons)


def test_a_run_that_is_interrupted_names_its_job(tmp_path: Path):
    from gpuwise.runtime import TrainSettings
    from gpuwise.step_settings import job_word

    assert job_word("my jobs/a.py:job") == "'my jobs/a.py:job'"
    assert job_word("") == job_word(object()) == "JOB"
    assert TrainSettings(job_argument="a.py:job").job_argument == "a.py:job"
