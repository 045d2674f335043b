"""The first update of a run: what had a gradient has moved, or the run says what did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpuwise.runtime.build.optimizers import CombinedOptimizer, InBackward
from gpuwise.runtime.build.program import build
from gpuwise.runtime.health import FirstUpdate
from gpuwise.runtime.show import read_log
from gpuwise.strategy import KERNELS_OF, OPTIMIZERS, Strategy
from training_samples import points, toy, train

WORDS = ("moved", "finite", "no update", "not given")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).relu()


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Sequential(Block(), Block()), nn.Linear(64, 2))


def told(result: Any) -> list[str]:
    return [note for note in result.notes if any(word in note for word in WORDS)]


class Idle(torch.optim.SGD):
    """Planted: leaves whole blocks of 8 as they are, as PyTorch's fused SGD does with 16-bit parameters on a CPU."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    tail = p.numel() // 8 * 8
                    p.view(-1)[tail:] -= group["lr"] * p.grad.view(-1)[tail:]


def test_blocks_that_an_optimizer_skips_are_named(tmp_path: Path) -> None:
    job = toy(model=wide, optimizer=lambda some: Idle(some, lr=0.1), evaluate=None)
    result = train(job, Strategy(micro_batch=8), steps=3, folder=tmp_path)
    (note,) = told(result)
    # All but the bias of two numbers.
    assert note.startswith(
        "0.weight, 0.bias, 1.0.linear.weight, 1.0.linear.bias, 1.1.linear.weight and 2 more: nothing moved "
        "in the first update, though there were gradients: Idle does not train them."
    )
    events = [record for record in read_log(tmp_path / "log.jsonl") if record.get("text") == note]
    assert len(events) == 1


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if "bit" not in name])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "amp-fp16", "bf16"])
def test_nothing_is_said_where_everything_moves(optimizer: str, precision: str) -> None:
    job = toy(model=wide, learning_rate=1.0 if precision == "bf16" else 0.05, evaluate=None)
    strategy = Strategy(micro_batch=8, precision=precision, optimizer=optimizer)
    assert told(train(job, strategy, steps=1)) == []
    for kernels in KERNELS_OF[optimizer][1:] if precision == "fp32" else ():
        assert told(train(job, strategy.but(optimizer_kernels=kernels), steps=1)) == []
    if precision != "amp-fp16":
        assert told(train(job, strategy.but(optimizer_in_backward=True), steps=1)) == []


@pytest.mark.parametrize(
    "changes", [{"ema_decay": 0.9}, {"clip_norm": 0.1}, {"schedule": lambda step, steps: float(step > 2)}, {"warmup_steps": 3}]
)
def test_nothing_is_said_of_averages_clipping_and_rates_that_begin_at_zero(changes: dict[str, Any]) -> None:
    assert told(train(toy(model=wide, evaluate=None, **changes), Strategy(micro_batch=8), steps=5)) == []


def test_steps_below_the_resolution_of_bf16_are_named() -> None:
    job = toy(model=wide, optimizer="sgd", learning_rate=1e-6, evaluate=None)
    (note,) = told(train(job, Strategy(micro_batch=8, precision="bf16"), steps=2))
    assert "its steps are below the resolution of bfloat16 at a learning rate of 1e-06" in note
    assert "--precision amp-bf16" in note
    assert told(train(job, Strategy(micro_batch=8), steps=2)) == []  # in 32 bits it moves


def test_a_gradient_that_has_all_but_vanished_is_no_news() -> None:
    """As that of a bias before a batch norm, which is rounding alone: Adam's epsilon keeps it from moving anything."""
    a, b = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(64))
    optimizer = torch.optim.AdamW([a, b], lr=1e-3, weight_decay=0.0)
    first = FirstUpdate(optimizer, {id(a): "a", id(b): "b"})
    (a.sum() + 1e-18 * b.sum()).backward()
    optimizer.step()
    assert (b == 1).all()
    assert first.notes() == []


def test_when_only_part_of_the_16_bit_numbers_move_the_share_is_told() -> None:
    job = toy(model=wide, optimizer="adamw", learning_rate=2e-5, evaluate=None)
    notes = told(train(job, Strategy(micro_batch=8, precision="bf16"), steps=2))
    assert any("% of the 16-bit numbers with a gradient moved in the first update" in note for note in notes)


def test_a_rate_of_zero_throughout_is_told() -> None:
    job = toy(model=wide, schedule=lambda step, steps: 0.0, evaluate=None)
    (note,) = told(train(job, Strategy(micro_batch=8), steps=3))
    assert note == (
        "no update was made in 3 steps, so nothing was trained: the learning rate was 0, or all of them were skipped."
    )


def test_gradients_that_always_overflow_are_told() -> None:
    def loud(model: nn.Module, batch: Any) -> Tensor:
        return 1e30 * F.cross_entropy(model(batch["x"]).float(), batch["y"])

    strategy = Strategy(micro_batch=8, precision="amp-fp16")
    (note,) = told(train(toy(model=wide, loss=loud, evaluate=None), strategy, steps=4))
    assert "no update was made in 4 steps, so nothing was trained: gradients overflowed in fp16" in note


def test_parameters_that_the_jobs_optimizer_was_not_given_are_named() -> None:
    job = toy(model=wide, optimizer=lambda some: torch.optim.SGD(list(some)[-2:], lr=0.1), evaluate=None)
    (note,) = told(train(job, Strategy(micro_batch=8), steps=2))
    assert note.startswith(
        "0.weight, 0.bias, 1.0.linear.weight, 1.0.linear.bias, 1.1.linear.weight and 1 more have gradients, "
        "but the job's optimizer was not given them"
    )


def test_optimizer_state_that_is_not_finite_is_told() -> None:
    class Broken(torch.optim.Adam):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for state in self.state.values():
                state["exp_avg"].fill_(torch.nan)

    job = toy(optimizer=lambda some: Broken(some, lr=0.1), evaluate=None)
    (note,) = told(train(job, Strategy(micro_batch=8), steps=1))
    assert "weight, bias: values or optimizer state that are not finite after the first update" in note


def test_a_step_that_the_scaler_skips_is_not_the_first_update() -> None:
    """The real one after it is looked at, with fused kernels and with others."""
    for kernels in ("fused", "foreach"):
        torch.manual_seed(0)
        program = build(toy(model=wide), Strategy(precision="amp-fp16", optimizer="adam", optimizer_kernels=kernels), "cpu")
        first = FirstUpdate(program.optimizer, program.names_of_updated())
        program.accumulate_gradients([points(8)])
        next(iter(program.model.parameters())).grad[0] = torch.inf  # type: ignore[index]
        program.update()
        assert first.notes() is None
        program.step([points(8)])
        assert first.notes() == []
        assert first.notes() == []


def test_several_optimizers_tied_weights_and_other_layouts_are_looked_at() -> None:
    a = nn.Parameter(torch.ones(8, 3, 3, 3).contiguous(memory_format=torch.channels_last))
    b = nn.Parameter(torch.ones(40, 8).t())
    still = nn.Parameter(torch.ones(5))

    class Nothing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    both = CombinedOptimizer([torch.optim.SGD([a, b], lr=0.1), Nothing([still], lr=0.1)])
    first = FirstUpdate(both, {id(a): "a", id(b): "b", id(still): "still"})
    (a.sum() + b.sum() + still.sum()).backward()
    both.step()
    notes = first.notes()
    assert notes is not None
    assert [note.text.partition(":")[0] for note in notes] == ["still"]


def test_an_update_in_backward_is_looked_at() -> None:
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    first = FirstUpdate(InBackward([a, b], lambda some: torch.optim.SGD(some, lr=0.1)), {id(a): "a", id(b): "b"})
    assert first.notes() is None
    (a * 2).sum().backward()
    assert first.notes() == []
