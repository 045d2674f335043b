"""What is not finite: buffers go back with a skipped step, the input is blamed where it is at fault, an infinite gradient moves
nothing, and nothing broken is saved without a word."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from gpuwise.errors import InputError, JobError
from gpuwise.runtime.build.buffers import ALWAYS_COPIED_BYTES, SavedBuffers, sound_buffers
from gpuwise.runtime.health import bad_input
from gpuwise.runtime.show import read_log
from gpuwise.strategy import Strategy
from training_samples import points, toy, train, training

EIGHT = Strategy(micro_batch=8)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No bias before the norm: its gradient would be rounding noise, which Adam makes as large as any other.
        self.inner, self.norm, self.out = nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.inner(x)).relu())


def with_bad_rows(*rows: int, value: float = math.nan, count: int = 160) -> dict[str, Tensor]:
    data = points(count)
    for row in rows:
        data["x"][row, 1] = value
    return data


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def by_hand(data: dict[str, Tensor], order: list[list[int]], lr: float) -> nn.Module:
    """Plain PyTorch: a step whose loss is not finite is left out, and what its forward wrote is put back."""
    torch.manual_seed(0)
    model = Normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=False, fused=False)
    for rows in order:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        loss = F.cross_entropy(model(data["x"][rows]), data["y"][rows])
        if loss.isfinite():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            model.load_state_dict(before)
    return model


class Ordered(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows in their order, over and over."""

    def __init__(self, data: dict[str, Tensor]):
        self.data = data

    def __iter__(self) -> Any:
        yield from ({name: column[i] for name, column in self.data.items()} for i in range(len(self.data["x"])))


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_one_bad_sample_leaves_the_statistics_as_they_are_without_it(precision: str, accumulation: int) -> None:
    data = with_bad_rows(43)
    strategy = Strategy(micro_batch=8, accumulation=accumulation, precision=precision)
    job = toy(model=Normed, data=lambda: Ordered(data), evaluate=None)
    result = train(job, strategy, on_nonfinite="skip", steps=20 // accumulation)
    assert result.skipped_steps == 1
    state = result.model.state_dict()
    assert all(value.isfinite().all() for value in state.values())
    assert int(state["norm.num_batches_tracked"]) == 20 - accumulation
    if (precision, accumulation) == ("fp32", 1):
        expected = by_hand(data, [list(range(n, n + 8)) for n in range(0, 160, 8)], lr=0.05).state_dict()
        for name, value in state.items():
            torch.testing.assert_close(value, expected[name], rtol=2e-3, atol=1e-6)


def test_under_fp16_a_step_whose_gradients_alone_overflow_keeps_its_statistics() -> None:
    """As plain PyTorch does: the forward was sound, and the scaler lowers its scale."""

    def loud(model: nn.Module, batch: Any) -> Tensor:
        return 100 * F.cross_entropy(model(batch["x"]).float(), batch["y"])

    strategy = Strategy(micro_batch=8, precision="amp-fp16", optimizer="momentum")
    run = training(toy(model=Normed, loss=loud, learning_rate=1e-4, evaluate=None), strategy, steps=12)
    run.run()
    assert run.result is not None
    assert run._run.program.scaler.get_scale() < 2**16
    assert run.result.skipped_steps == 0
    assert int(run.result.model.state_dict()["norm.num_batches_tracked"]) == 12
    assert all(value.isfinite().all() for value in run.result.model.state_dict().values())


def test_saved_buffers_come_back_whatever_forward_did_to_them() -> None:
    model = Normed()
    model.register_buffer("mask", torch.zeros(ALWAYS_COPIED_BYTES))  # large
    model.register_buffer("none", None)
    model.register_buffer("moved", torch.ones(3))
    saved = SavedBuffers(model)
    for turn in range(3):
        saved.save()
        before, moved = buffers(model), model.moved
        model(torch.randn(4, 4))
        model.mask.fill_(1.0 + turn)
        model.moved = torch.zeros(3)
        model.norm.running_var.fill_(math.nan)
        saved.restore()
        assert model.moved is moved
        assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
        model(torch.randn(4, 4))  # what is saved next has moved on
        model.mask.fill_(-1.0 - turn)


@pytest.mark.parametrize("wrong", [False, True])
def test_buffers_are_put_back_on_the_device_by_a_number_that_is_there(wrong: bool) -> None:
    model = Normed()
    saved = SavedBuffers(model)
    saved.save()
    before = buffers(model)
    model(torch.full((4, 4), math.nan))
    after = buffers(model)
    saved.restore_where(torch.tensor(wrong))
    for name, value in model.named_buffers():
        assert torch.equal(value.nan_to_num(7.0), (before if wrong else after)[name].nan_to_num(7.0))


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "holds NaN at sample 5 of"), (math.inf, "holds inf at sample 5 of"), (-math.inf, None)]
)
def test_the_tensor_and_the_sample_at_fault_are_named(value: float, said: str | None) -> None:
    good, bad = points(8), points(8)
    bad["x"][5, 2] = value
    result = bad_input([bad])
    assert result == (said and f"batch['x'] {said} the micro-batch")
    assert bad_input([good]) is None
    result = bad_input([good, (bad["y"], bad["x"])])
    assert result == (said and f"batch[1] {said} micro-batch 2 of the step")


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_nan_in_the_data_is_not_blamed_on_the_learning_rate(precision: str, tmp_path: Path) -> None:
    job = toy(data=lambda: Ordered(with_bad_rows(29)), evaluate=None)
    with pytest.raises(
        JobError,
        match=r"toy: batch\['x'\] holds NaN at sample 5 of the micro-batch, so the loss is nan at "
        r"step 4; the last good one was",
    ) as caught:
        train(job, Strategy(micro_batch=8, precision=precision), folder=tmp_path / "run", steps=20)
    assert "learning rate" not in str(caught.value)
    assert "--on-nonfinite skip" in str(caught.value)
    events = [r for r in read_log(tmp_path / "run" / "log.jsonl") if r["record"] == "event"]
    assert any("holds NaN at sample 5" in event["text"] for event in events)


class Exploding(torch.autograd.Function):
    """The same number, with an infinite gradient."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, explodes: bool) -> Tensor:
        ctx.explodes = explodes
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * (math.inf if ctx.explodes else 1.0), None


def exploding_at(step: int) -> Any:
    calls = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        return Exploding.apply(F.cross_entropy(model(batch["x"]), batch["y"]), len(calls) == step)  # type: ignore[no-any-return]

    return loss


def test_an_infinite_gradient_stops_the_run_before_its_update_where_it_is_clipped(tmp_path: Path) -> None:
    run = training(toy(loss=exploding_at(3), clip_norm=1.0, evaluate=None), EIGHT, steps=6, folder=tmp_path)
    with pytest.raises(JobError, match=r"the gradients are not finite, though the loss is .* at step 3"):
        run.run()
    assert all(p.isfinite().all() for p in run.model.parameters())


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_an_infinite_gradient_is_skipped_when_asked(clip_norm: float | None) -> None:
    result = train(toy(loss=exploding_at(3), clip_norm=clip_norm, evaluate=None), EIGHT, steps=6, on_nonfinite="skip")
    assert (result.steps, result.skipped_steps) == (6, 1)
    assert all(p.isfinite().all() for p in result.model.parameters())


def test_no_step_can_be_skipped_that_is_made_within_backward() -> None:
    with pytest.raises(InputError, match="no step can be skipped"):
        train(toy(), EIGHT.but(optimizer_in_backward=True), steps=2, on_nonfinite="skip")


class Counting(nn.Module):
    """Of `points`. A mask that is -inf from the start, one that is made so later, a limit that is inf, an average."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        for name, value in (("mask", -math.inf), ("later", 0.0), ("limit", math.inf), ("average", 0.0)):
            self.register_buffer(name, torch.full((3,), value))
        self.register_buffer("temporary", torch.zeros(3), persistent=False)
        self.breaks = False

    def forward(self, x: Tensor) -> Tensor:
        self.later.fill_(-math.inf)
        self.temporary.fill_(math.nan)
        if self.breaks and self.training:
            self.average.fill_(math.nan)
        return self.linear(x)  # type: ignore[no-any-return]


def breaking() -> nn.Module:
    model = Counting()
    model.breaks = True
    return model


def test_a_buffer_that_became_nan_is_neither_saved_nor_exported_without_a_word(tmp_path: Path) -> None:
    run = training(toy(model=breaking, evaluate=None), EIGHT, steps=3, folder=tmp_path)
    result = run.run()
    assert result.checkpoints is not None
    assert result.checkpoints["count"] == 0
    events = [r["text"] for r in read_log(tmp_path / "log.jsonl") if r["record"] == "event"]
    assert "no checkpoint of step 3: no longer finite numbers are in its buffers average." in events
    with pytest.raises(JobError, match="not exported: no longer finite numbers are in its buffers average"):
        run.export(tmp_path / "weights.safetensors")
    assert not (tmp_path / "weights.safetensors").exists()


def test_buffers_that_are_meant_not_to_be_finite_are_saved(tmp_path: Path) -> None:
    run = training(toy(model=Counting, evaluate=None), EIGHT, steps=3, folder=tmp_path)
    result = run.run()
    assert result.checkpoints is not None
    assert result.checkpoints["count"] == 1
    saved = load_file(run.export(tmp_path / "weights.safetensors"))
    assert saved["mask"].isneginf().all()
    assert saved["later"].isneginf().all()
    assert sound_buffers(Counting()) == ["mask", "later", "average"]
