"""Case: a strategy of several ranks that is compared with one process, by tests and by benchmarks/parallel_truth.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from tests.dist.tiny_decoder import decoder_job
from tests.dist.training import compare

from gpuwise.job import Job
from gpuwise.strategy import Strategy

FP32 = 1e-5
ROUNDED_TO_16_BITS = {"loss": 3e-2, "weights": 0.5}  # at small weights AdamW turns rounding into whole updates


@dataclass(frozen=True)
class Case:
    """A strategy that is to train as one process does.

    Attributes:
        name: what the table calls it.
        strategy: on its mesh.
        make_job: makes the job.
        loss: largest relative difference of any step's loss.
        weights: largest relative difference of any parameter after the last step.
        alone: the strategy of the single process; None for `strategy` on one device.
        default: whether it stays in the usual run of tests.
    """

    name: str
    strategy: Strategy
    make_job: Callable[[], Job] = decoder_job
    loss: float = FP32
    weights: float = FP32
    alone: Strategy | None = None
    default: bool = False

    @property
    def title(self) -> str:
        return f"{self.name} on {self.strategy.mesh}"


def check(case: Case) -> None:
    """Trains under the strategy and alone. Raises AssertionError where losses or weights differ."""
    difference = compare(case.strategy, case.make_job, alone=case.alone)
    assert difference.loss <= case.loss
    assert difference.weights <= case.weights


def each_of(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """A test for each case; those that are not default are slow."""
    marked = [pytest.param(case, marks=() if case.default else pytest.mark.slow, id=case.title) for case in cases]
    return pytest.mark.parametrize("case", marked)
