"""Whole runs on accelerators made of the CPU: the same losses and weights, whatever the device can do and lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from tests.fake_accelerator import bare_accelerator, late_accelerator
from tests.training_samples import STRATEGY, Drawing, layers, points, toy, train, training
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.runtime.build.program import build
from gpuwise.runtime.checkpoint.snapshot import Snapshot
from gpuwise.runtime.checkpoint.state import pack
from gpuwise.runtime.data.prefetch import StreamCopies
from gpuwise.runtime.devices import Backend
from gpuwise.runtime.devices import here as here_module
from gpuwise.runtime.run.device_losses import AHEAD, GatheredLosses, losses_of
from gpuwise.runtime.run.loss_tracker import LossTracker
from gpuwise.strategy import HostSettings, Strategy

STEPS = 11
CASES = {
    "columns": (toy(model=layers), STRATEGY),
    "samples": (toy(model=layers, data=lambda: Drawing(160)), STRATEGY),
    "clipped": (toy(clip_norm=0.1), STRATEGY),
    "fp16": (toy(), Strategy(micro_batch=8, precision="amp-fp16")),
    "offload": (toy(), Strategy(micro_batch=8, offload="optimizer")),
}


@pytest.fixture
def losses(monkeypatch) -> list[tuple[int, list[float]]]:
    """Step and loss in the order in which they became known."""
    seen: list[tuple[int, list[float]]] = []
    add = LossTracker.add
    monkeypatch.setattr(LossTracker, "add", lambda self, row, values: (seen.append((row.step, values)), add(self, row, values)))
    return seen


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["late", "bare"])
def test_a_run_is_the_same_as_on_the_cpu(monkeypatch, losses, tmp_path, name, kind):
    job, strategy = CASES[name]
    expected = train(job, strategy.but(offload="none"), steps=STEPS, folder=tmp_path / "cpu", save_every_s=1e-9)
    expected_losses = losses.copy()
    losses.clear()
    if kind == "bare":
        bare_accelerator(monkeypatch)
    with late_accelerator(monkeypatch) if kind == "late" else nullcontext(Counter()) as calls:
        result = train(job, strategy, steps=STEPS, folder=tmp_path / "accelerator", save_every_s=1e-9)
        assert losses == expected_losses
        for ours, theirs in zip(result.model.parameters(), expected.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    if kind == "late" and name == "columns":
        assert calls["late to the host"] >= STEPS
        uses = ("late to the device", "wait_event", "keep_for", "reset_peak", "random_state", "pinned")
        assert min(calls[use] for use in uses) >= 1
    if kind == "late" and name == "offload":
        assert calls["synchronize"] >= STEPS


def test_a_snapshot_holds_the_values_of_its_moment(monkeypatch):
    with late_accelerator(monkeypatch) as calls:
        snapshot, weight = Snapshot(), torch.ones(5)
        for value in (1.0, 2.0):
            weight.fill_(value)
            copy = snapshot.take(pack({"model": {"weight": weight}}))
            weight.fill_(-1.0)  # the next step
            assert snapshot.wait() == 1e-3
            (tensors,) = copy.tensors.values()
            assert [tensor.tolist() for tensor in tensors.values()] == [[value] * 5]
        assert calls["register"] == 1


@pytest.mark.parametrize("kind", ["late", "bare"])
def test_a_run_goes_on_where_it_was(monkeypatch, losses, tmp_path, kind):
    job = toy(model=layers)
    if kind == "bare":
        bare_accelerator(monkeypatch)
    with late_accelerator(monkeypatch) if kind == "late" else nullcontext(Counter()) as calls:
        whole = train(job, STRATEGY, steps=STEPS, folder=tmp_path / "whole")
        whole_losses = losses.copy()
        losses.clear()
        for step in training(job, STRATEGY, steps=STEPS, folder=tmp_path / "parts"):
            if step.step == 5:
                break
        parts = train(job, STRATEGY, steps=STEPS, folder=tmp_path / "parts")
        assert losses == whole_losses
        for ours, theirs in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert bool(calls["set_random_state"]) == (kind == "late")


def test_the_late_accelerator_notices_a_value_read_early(monkeypatch):
    with late_accelerator(monkeypatch):
        backend = here_module.backend_of("cpu")
        room, value = backend.pinned(torch.zeros(1)), torch.ones(1)
        room.copy_(value, non_blocking=True)
        assert room.isnan().all()
        value.fill_(2.0)
        event = backend.mark()
        assert not event.query()
        event.synchronize()
        assert room.item() == 1.0
        copies = StreamCopies(torch.device("cpu"), pinned=True)
        batch, copied = copies.start(torch.ones(3))
        assert batch.isnan().all()
        assert copies.finish((batch, copied)).tolist() == [1.0] * 3


def test_losses_of_a_device_without_asynchronous_copies_come_several_at_a_time(monkeypatch):
    bare_accelerator(monkeypatch)
    losses = losses_of(torch.device("cpu"), 2)
    assert isinstance(losses, GatheredLosses)
    sizes, results = [], []
    for step in range(2 * AHEAD + 1):
        ready = losses.ready()
        sizes.append(len(ready))
        results += ready
        losses.put(step, [torch.tensor(step + 0.5, dtype=torch.float64), torch.tensor(float(step))])
    assert sizes == [0] * AHEAD + [AHEAD] + [0] * (AHEAD - 1) + [AHEAD]
    assert results + losses.ready(wait=True) == [(step, [step + 0.5, float(step)]) for step in range(2 * AHEAD + 1)]
    assert losses.ready(wait=True) == []


def lacking(monkeypatch, **reasons: str) -> None:
    """The CPU becomes a device that lacks these."""

    def answer(reason: str) -> Callable[[Backend], str]:
        return lambda self: reason

    methods = {name: answer(reason) for name, reason in reasons.items()}
    module = SimpleNamespace(synchronize=lambda device: None)
    monkeypatch.setitem(here_module.BACKENDS, "cpu", type("Lacking", (Backend,), {"_module": module, **methods}))


@pytest.mark.parametrize(
    ("reason", "strategy", "ways_out"),
    [
        ("why_no_bf16", Strategy(precision="amp-bf16"), "--precision amp-fp16"),
        ("why_no_bf16", Strategy(precision="bf16"), "--precision amp-fp16"),
        ("why_no_compile", Strategy(compile=True), "leave out --compile"),
    ],
)
def test_what_a_device_lacks_is_refused_with_its_reason(monkeypatch, reason, strategy, ways_out):
    lacking(monkeypatch, **{reason: "this device cannot do that"})
    with pytest.raises(UnsupportedError, match=r"this device cannot do that\.") as refused:
        build(toy(), strategy, "cpu")
    assert refused.value.ways_out[0] == ways_out
    build(toy(), Strategy(), "cpu")


def in_doubles(n: int) -> dict[str, torch.Tensor]:
    return {**points(n), "x": points(n)["x"].double()}


def test_double_precision_is_refused_where_there_is_none(monkeypatch):
    build(toy(batch=in_doubles), Strategy(), "cpu")
    lacking(monkeypatch, why_no_float64="Apple's GPUs have no double precision")
    with pytest.raises(UnsupportedError, match=r"batch\['x'\] is float64: Apple's GPUs have no double precision"):
        build(toy(batch=in_doubles), Strategy(), "cpu")

    def model() -> nn.Module:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    with pytest.raises(UnsupportedError, match="the model has tensors of float64: Apple's"):
        build(toy(model=model), Strategy(), "cpu")


def test_settings_that_serve_no_accelerator_here_are_told(monkeypatch):
    bare_accelerator(monkeypatch)
    result = train(toy(), STRATEGY, steps=2, host=HostSettings(pinned_memory=True))
    assert any("pinned memory" in note for note in result.notes)
