"""What ranks exchange in each step: when it begins, and what every rank reads from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import runs
import torch
import torch.distributed as dist
from ranks import on_ranks

from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.runtime.ranks import ALONE
from gpuwise.runtime.ranks.word import StepWord, Word, word_of
from gpuwise.runtime.run.decisions import AgreedDecisions
from gpuwise.runtime.run.together import StepTogether
from gpuwise.strategy import Mesh, Strategy

CPU = torch.device("cpu")


class NoNames(StepWord):
    """Without the ranks' store, which these tests do not start."""

    def _agreed_names(self, parts: dict[str, torch.Tensor]) -> list[str]:
        return sorted(parts)


def together(mesh: Mesh, *, accumulation: int) -> tuple[StepTogether, StepWord]:
    """Rank 1 asks to stop."""
    word = NoNames(ALONE, make_world(mesh, "cpu"), CPU, has_loss=True)
    decisions = SimpleNamespace(word=lambda step, now_s: Word(stop=float(dist.get_rank() == 1)))
    return StepTogether(ALONE, word, cast(AgreedDecisions, decisions), accumulation=accumulation), word


def of_two_micro_batches() -> tuple[list[bool], float, Word, float]:
    agreement, word = together(Mesh(dp_replicate=2), accumulation=2)
    rank, started = dist.get_rank(), []
    agreement.begin(1)
    for number in range(2):
        started.append(word.started)
        agreement.add_loss(torch.tensor(10.0 * rank + number), {"largest": torch.tensor(100.0 * rank + number)})
    started.append(word.started)
    loss, numbers, parts = agreement.read(torch.tensor(-1.0), {})
    return [*started, word.started], loss.item(), word_of(numbers.tolist()), parts["largest"].item()


def test_the_collective_begins_with_the_last_micro_batch_and_averages_all():
    for started, loss, word, largest in on_ranks(2, of_two_micro_batches):
        assert started == [False, False, True, False]
        assert loss == pytest.approx((0 + 1 + 10 + 11) / 4)
        assert largest == pytest.approx((0 + 1 + 100 + 101) / 4)
        assert word == Word(stop=1.0)


def without_losses_before_backward() -> float:
    """As of a pipeline."""
    agreement, _ = together(Mesh(dp_replicate=2), accumulation=2)
    agreement.begin(1)
    return agreement.read(torch.tensor(2.0 + dist.get_rank()), {})[0].item()


def test_a_step_that_shows_no_losses_begins_it_after_the_gradients():
    assert on_ranks(2, without_losses_before_backward) == [2.5, 2.5]


def test_a_program_shows_each_loss_before_its_backward_pass():
    program = build(runs.job(), Strategy(micro_batch=4, accumulation=2), "cpu")
    seen: list[tuple[float, bool]] = []
    first = next(program.model.parameters())
    program.on_loss = lambda loss, parts: seen.append((loss.item(), first.grad is None))
    batches: list[Any] = [{name: column[rows] for name, column in runs.data().items()} for rows in (slice(4), slice(4, 8))]
    mean = program.accumulate_gradients(batches)
    assert [before for _, before in seen] == [True, False]
    assert sum(loss for loss, _ in seen) / 2 == pytest.approx(mean.item())


def of_steps(accumulation: int) -> tuple[list[bool], list[tuple[float, Word, dict[str, float]]], list[list[float]]]:
    """Whether each step has a collective of its own, what it exchanges, and this rank's losses and their parts."""
    mesh, own = Mesh(dp_replicate=3), []
    world = make_world(mesh, "cpu")
    program = build(runs.job(), Strategy(mesh=mesh, micro_batch=4, accumulation=accumulation), "cpu", world)
    word = NoNames(ALONE, world, CPU, has_loss=True, with_gradients=program.gradient_numbers)
    stops = SimpleNamespace(word=lambda step, now_s: Word(stop=float(step == dist.get_rank() == 2)))
    agreement = StepTogether(ALONE, word, cast(AgreedDecisions, stops), accumulation=accumulation)
    program.on_loss = agreement.add_loss
    alone, known = [], []
    for step in range(1, 5):
        first = 12 * step + 4 * dist.get_rank()
        rows = [{name: column[first:][:4] for name, column in runs.data().items()}] * accumulation
        agreement.begin(step)
        loss = program.accumulate_gradients(rows)
        alone.append(word._running is not None)
        own.append([loss.item(), program.parts["largest"].item()])
        known.append(agreement.as_numbers(loss, program.parts))
        program.update()
    return alone, known, own


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_replicas_exchange_it_with_their_gradients(accumulation: int):
    answers = on_ranks(3, of_steps, accumulation)
    for step in range(4):
        losses, largest = zip(*(own[step] for _, _, own in answers), strict=True)
        for alone, known, _ in answers:
            loss, word, parts = known[step]
            assert not alone[step]
            assert loss == pytest.approx(sum(losses) / 3, rel=1e-6)
            assert parts == {"largest": pytest.approx(sum(largest) / 3, rel=1e-6)}
            assert word == (pytest.approx((1.0, 0.0, 0.0)) if step == 1 else (0.0, 0.0, 0.0))
