"""A family made from small recordings is what recording at another size gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_trace_family import assert_same
from torch import Tensor, nn
from tracing_samples import attention_job, batch_of, class_loss, mlp_job

import gpuwise
from gpuwise.errors import InputError
from gpuwise.job import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.strategy import Strategy
from gpuwise.trace import Axis, Trace, live_bytes
from gpuwise.tracing import record, trace_family
from gpuwise.tracing.family import MICRO_BATCH, disagreement, record_family
from gpuwise.tracing.record import record_many

CONFIG = Gpt2Config(vocabulary=100, positions=512, width=32, layers=2, heads=2)
SEQUENCE = Axis("seq_len", start=64, step=32, degree=2, exact_every=32)


def language_at(strategy: Strategy) -> object:
    def at(sizes: Mapping[str, int]) -> Trace:
        job = Job(
            lambda: Gpt2(CONFIG),
            lambda n: next_token_batch(n, vocabulary=100, seq_len=sizes["seq_len"]),
            token_loss,
            sample_unit="token",
            tokens_per_sample=sizes["seq_len"],
            seq_len=sizes["seq_len"],
        )
        return record(job, strategy.but(micro_batch=sizes["micro_batch"]))

    return at


@pytest.mark.parametrize(
    "strategy", [Strategy(precision="amp-bf16"), Strategy(precision="bf16", recompute="full")], ids=["amp-bf16", "recomputed"]
)
def test_batch_and_sequence_off_the_grid(strategy: Strategy) -> None:
    at = language_at(strategy)
    family = record_family(at, (MICRO_BATCH, SEQUENCE), {"micro_batch": 1, "seq_len": 256}, {"micro_batch": 7, "seq_len": 192})  # type: ignore[arg-type]
    assert family is not None
    for sizes in ({"micro_batch": 5, "seq_len": 160}, {"micro_batch": 9, "seq_len": 416}):
        direct = at(sizes)  # type: ignore[operator]
        assert_same(family.at(**sizes), direct)
        assert live_bytes(family.at(**sizes)).peak_bytes == live_bytes(direct).peak_bytes
        assert disagreement(family.at(**sizes), direct) == 0


def test_a_compiled_step_has_a_family() -> None:
    job, strategy = attention_job(), Strategy("amp-bf16", compile=True)
    family = trace_family(job, strategy)
    for micro_batch in (3, 48):
        assert family.covers({"micro_batch": micro_batch})
        direct = record(job, strategy.but(micro_batch=micro_batch))
        assert disagreement(family.at(micro_batch=micro_batch), direct) == 0


def test_compiled_steps_fit_and_are_planned_at_more_than_one_sample() -> None:
    job = mlp_job()
    fits = {compiled: gpuwise.fit(job, on="rtx-4090", compile=compiled).largest_micro_batch for compiled in (False, True)}
    assert fits[True] >= 0.9 * fits[False] > 1000
    request = {"samples": "1M", "on": "rtx-4090", "global_batch": 64}
    plans = [gpuwise.plan(job, compile=compiled, **request).plans[0] for compiled in (False, True)]
    assert plans[1].strategy.compile
    assert plans[1].strategy.micro_batch == plans[0].strategy.micro_batch == 64


def test_a_job_that_clips_its_gradients_has_a_family() -> None:
    # The norm that a step leaves is older than the optimizer's state in the first recording, younger in all others.
    job = replace(mlp_job(), clip_norm=1.0)
    family = trace_family(job, Strategy(micro_batch=2))
    assert [axis.name for axis in family.axes] == ["micro_batch"]
    assert_same(family.at(micro_batch=9), record(job, Strategy(micro_batch=9)))


def test_samples_that_meet_each_other_are_quadratic_in_the_batch() -> None:
    def contrastive(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        z = model(batch["x"])
        return (z @ z.T).logsumexp(1).mean()

    job = Job(lambda: nn.Linear(8, 16), lambda n: {"x": torch.randn(n, 8)}, contrastive, name="contrastive")
    family = trace_family(job, Strategy(micro_batch=4))
    direct = record(job, Strategy(micro_batch=1000))
    assert disagreement(family.at(micro_batch=1000), direct) == 0
    assert live_bytes(direct).peak_bytes > 2 * 4 * 1000**2  # the scores of every pair, and their gradient


def test_a_program_that_is_no_polynomial_is_known_at_one_batch_only() -> None:
    def halves(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"][: batch["x"].shape[0] // 2]).mean()

    job = Job(lambda: nn.Linear(8, 16), lambda n: {"x": torch.randn(n, 8)}, halves, name="halves")
    family = trace_family(job, Strategy(micro_batch=11))
    assert family.axes == ()
    assert family.at(micro_batch=11).header.sizes == {"micro_batch": 11}
    with pytest.raises(InputError):
        family.at(micro_batch=12)


@pytest.mark.parametrize("job", [mlp_job(), attention_job()], ids=["mlp", "attention"])
def test_any_job_has_a_family_over_its_micro_batch(job: Job) -> None:
    family = trace_family(job, Strategy(precision="amp-bf16", micro_batch=4))
    for micro_batch in (4, 7, 100):
        assert_same(family.at(micro_batch=micro_batch), record(job, Strategy(precision="amp-bf16", micro_batch=micro_batch)))
    assert family.at().header.sizes == {"micro_batch": 4}
    with pytest.raises(InputError):
        family.at(seq_len=128)


class TwicePerSample(nn.Module):
    """A program that changes with the batch: no polynomial holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = self.layer(x)
        return x


def test_a_program_that_changes_with_the_batch_has_one_size() -> None:
    job = Job(TwicePerSample, batch_of(64), class_loss)
    family = trace_family(job, Strategy(micro_batch=3))
    assert family.axes == ()
    assert_same(family.at(micro_batch=3), record(job, Strategy(micro_batch=3)))
    with pytest.raises(InputError, match="micro_batch 3"):
        family.at(micro_batch=4)


@pytest.mark.parametrize(
    "strategy",
    [Strategy("amp-fp16"), Strategy("bf16", recompute="full"), Strategy(keep_gradients=True)],
    ids=["amp-fp16", "recomputed", "kept gradients"],
)
def test_a_step_recorded_once_is_the_first_of_two_micro_batches(strategy: Strategy) -> None:
    job = Job(lambda: Gpt2(CONFIG), lambda n: next_token_batch(n, vocabulary=100, seq_len=64), token_loss)
    both, alone = (record_many(job, strategy, [3, 7], once=once)[1] for once in ((), (7,)))
    assert (both.sequence.micro_step == 1).any()
    assert not (alone.sequence.micro_step == 1).any()
    assert disagreement(both, alone) == 0
    assert live_bytes(both).by_category == live_bytes(alone).by_category
    assert disagreement(record_many(job, strategy, [2, 6])[1], alone) > 0


def test_disagreement_sees_what_differs() -> None:
    a, b = (record(mlp_job(), Strategy(micro_batch=n)) for n in (2, 4))
    assert disagreement(a, a) == 0
    assert 0 < disagreement(a, b) < 1
    assert disagreement(a, record(attention_job(), Strategy(micro_batch=2))) == np.inf


class _Loop(nn.Module):
    """A pass over each sample by itself, so that the program has as many operations as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(row).relu() for row in x])


@pytest.mark.slow
def test_a_program_that_changes_with_the_batch_is_recorded_at_each_size() -> None:
    job = Job(_Loop, lambda n: torch.randn(n, 16), lambda model, x: model(x).square().mean(), name="loop")
    fits = gpuwise.fit(job, on="rtx-4090")
    assert fits.largest_micro_batch == fits.largest_tried == 64
    assert "micro-batch 64, the largest tried" in str(fits)
    assert any("the program changes with the micro-batch" in words for words in fits.assumptions)
    plan = gpuwise.plan(job, samples="1M", on="rtx-4090", global_batch=64).plans[0]
    assert (plan.strategy.micro_batch, plan.strategy.accumulation) == (64, 1)
    named = gpuwise.fit(job, on="rtx-4090", micro_batch=100)
    forecast = gpuwise.forecast(job, on="rtx-4090", micro_batch=100, precision=named.rows[0].strategy.precision)
    assert named.rows[0].memory == forecast.memory
