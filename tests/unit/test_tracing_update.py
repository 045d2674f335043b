"""What a job adds to the update, clipped gradients and averaged parameters, is part of the step that is recorded."""

import pytest
import torch
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, PHASES, Trace
from gpuwise.trace.update.optimizers import with_optimizer
from gpuwise.tracing import record

STRATEGY = Strategy(micro_batch=4, optimizer="adamw")
PARAMETERS = 20 * 30 + 30 + 30 * 5 + 5


def job(**fields) -> Job:
    return Job(
        model=lambda: nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)),
        batch=lambda n: torch.randn(n, 20),
        loss=lambda model, x: model(x).square().mean(),
        name="toy",
        **fields,
    )


def names(trace: Trace, phase: str) -> list[str]:
    mine = trace.sequence.operation[trace.sequence.phase == PHASES.index(phase)]
    return [trace.operations.name[index] for index in mine.tolist()]


def held(trace: Trace, category: str) -> int:
    return int(trace.storages.size_bytes[trace.storages.category == CATEGORIES.index(category)].sum())


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
def test_clipping_is_recorded_and_stays_under_another_optimizer(target):
    plain, clipped = record(job(), STRATEGY, target=target), record(job(clip_norm=1.0), STRATEGY, target=target)
    assert names(clipped, "optimizer") == names(plain, "optimizer")
    added = len(names(clipped, "backward")) - len(names(plain, "backward"))
    assert added > 0
    other = with_optimizer(clipped, "sgd")
    assert len(names(other, "backward")) - len(names(with_optimizer(plain, "sgd"), "backward")) == added
    twelve = clipped.with_accumulation(12)
    clips = [name for name in names(clipped, "backward") if "norm" in name]
    position = clipped.operations.name.index(clips[0])
    assert twelve.repeats[twelve.sequence.operation == position].max() == 1  # once a step, however many micro-batches


def test_an_average_is_recorded_with_its_memory():
    plain, averaged = record(job(), STRATEGY), record(job(ema_decay=0.99), STRATEGY)
    assert held(averaged, "optimizer_state") - held(plain, "optimizer_state") == 4 * PARAMETERS
    assert any("lerp" in name for name in names(averaged, "optimizer"))
    assert averaged.header.averages
    with pytest.raises(UnsupportedError, match="average"):
        with_optimizer(averaged, "sgd")
