"""Training and inference in fp16: what a plain PyTorch loop with fp32 master weights computes, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.memory_on_cpu import measured_bytes, predicted_bytes
from torch import Tensor, nn

import gpuwise
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, table_batch
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.checkpoint.program_state import load_program, program_state
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.tables import CATEGORIES
from gpuwise.tracing import record

FEATURES, CLASSES, MICRO_BATCH, ACCUMULATION = 16, 4, 8, 2
CONFIG = MlpConfig(features=FEATURES, hidden=(32,), classes=CLASSES)
STRATEGY = Strategy("fp16", micro_batch=MICRO_BATCH, accumulation=ACCUMULATION)
Batch = dict[str, Tensor]


def job(optimizer: str = "adamw", clip_norm: float | None = None) -> Job:
    return Job(
        model=lambda: Mlp(CONFIG),
        batch=partial(table_batch, features=FEATURES, classes=CLASSES),
        loss=class_loss,
        optimizer=optimizer,
        clip_norm=clip_norm,
        name="mlp",
    )


def steps(count: int, *, seed: int = 1) -> list[list[Batch]]:
    torch.manual_seed(seed)
    return [[table_batch(MICRO_BATCH, features=FEATURES, classes=CLASSES) for _ in range(ACCUMULATION)] for _ in range(count)]


def with_inf(batches: list[list[Batch]]) -> list[list[Batch]]:
    """A step whose gradients overflow."""
    batches[1][0]["x"] = batches[1][0]["x"] * 60_000
    return batches


def program(of: Job, strategy: Strategy = STRATEGY) -> Program:
    torch.manual_seed(0)
    return build(of, strategy, "cpu")


class PlainLoop:
    """fp16 weights, fp32 copies that the optimizer updates, and PyTorch's scaler, as written by hand."""

    def __init__(self, make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], clip_norm: float | None):
        torch.manual_seed(0)
        self.model = Mlp(CONFIG).half()
        self.masters = [nn.Parameter(p.detach().clone().float()) for p in self.model.parameters()]
        self.optimizer, self.clip_norm = make(self.masters), clip_norm
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)

    def step(self, batches: list[Batch]) -> None:
        for batch in batches:
            half = {name: x.half() if x.is_floating_point() else x for name, x in batch.items()}
            self.scaler.scale(class_loss(self.model, half) / len(batches)).backward()
        for p, master in zip(self.model.parameters(), self.masters, strict=True):
            assert p.grad is not None
            master.grad, p.grad = p.grad.float(), None
        self.scaler.unscale_(self.optimizer)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.masters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(self.model.parameters(), self.masters, strict=True):
                p.copy_(master)


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_are_those_of_a_plain_loop_and_an_overflow_is_skipped(optimizer: str, clip_norm: float | None) -> None:
    ours, plain = program(job(optimizer, clip_norm)), PlainLoop(OPTIMIZERS[optimizer], clip_norm)
    scales = []
    for batches in with_inf(steps(6)):
        before = [p.clone() for p in ours.model.parameters()]
        ours.step(batches)
        plain.step(batches)
        scales.append(ours.scaler.get_scale())
        assert ours.scaler.get_scale() == plain.scaler.get_scale()
        for old, new, wanted in zip(before, ours.model.parameters(), plain.model.parameters(), strict=True):
            assert new.dtype == torch.float16
            assert torch.equal(new, wanted)
            if len(scales) > 1 and scales[-1] < scales[-2]:
                assert torch.equal(new, old)
    assert scales == [2.0**15, *[2.0**14] * 5]  # the second step overflowed
    masters = list(ours.optimizer.copies.values())  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(masters, plain.masters, strict=True))
    assert any((master != master.half()).any() for master in masters)  # finer than fp16


def test_a_checkpoint_has_the_master_weights_and_goes_on_to_the_bit() -> None:
    batches = steps(6)
    straight, before, after = program(job()), program(job()), program(job())
    for step in batches:
        straight.step(step)
    for step in batches[:3]:
        before.step(step)
    state = copy.deepcopy(program_state(before))
    assert all(values["master"].dtype == torch.float32 for values in state["optimizer"]["state"].values())  # type: ignore[union-attr]
    after.step(steps(1, seed=7)[0])  # what was trained before is overwritten
    load_program(after, state)
    for step in batches[3:]:
        after.step(step)
    for one, other in zip(straight.model.parameters(), after.model.parameters(), strict=True):
        assert torch.equal(one, other)
    of_both = (one.optimizer.state_dict()["state"] for one in (straight, after))  # type: ignore[union-attr]
    for one, other in zip(*(state.values() for state in of_both), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_before_the_first_update_has_no_other_state() -> None:
    ours, other = program(job()), program(job())
    state = copy.deepcopy(program_state(ours))
    load_program(other, state)
    assert not any(other.optimizer.state.values())  # type: ignore[union-attr]
    of_bf16 = program_state(program(job(), STRATEGY.but(precision="bf16")))
    with pytest.raises(InputError, match="another model"):
        load_program(other, of_bf16)
    with pytest.raises(InputError, match="no fp32 weights"):
        load_program(other, {**state, "optimizer": {**of_bf16["optimizer"], "state": {}}})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("kernels", ["fused", "foreach"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_forecast_knows_the_memory_of_a_real_step(accumulation: int, kernels: str) -> None:
    """Of a model so large that its update is the peak."""
    large = replace(job(), model=lambda: Mlp(replace(CONFIG, hidden=(1024, 512))))
    strategy = STRATEGY.but(accumulation=accumulation, optimizer_kernels=kernels)
    assert predicted_bytes(large, strategy) == pytest.approx(measured_bytes(large, strategy), rel=1e-5)


def test_a_recording_has_fp16_parameters_and_fp32_state() -> None:
    trace = record(job(), STRATEGY)
    category_bytes = [int(trace.storages.size_bytes[trace.storages.category == row].sum()) for row in range(len(CATEGORIES))]
    of = dict(zip(CATEGORIES, category_bytes, strict=True))
    elements = sum(p.numel() for p in Mlp(CONFIG).parameters())
    assert of["parameter"] == of["gradient"] == 2 * elements
    assert of["optimizer_state"] == pytest.approx(12 * elements, abs=64)  # master weights and two moments


@pytest.mark.filterwarnings("ignore:no forecast to compare with")  # the catalog has no rate of a CPU's fp16
def test_forecast_plan_and_train_know_fp16(tmp_path: Path) -> None:
    forecast = gpuwise.forecast(job(), on="v100-sxm2-16gb", micro_batch=64, precision="fp16")
    assert forecast.strategy.precision == "fp16"
    plan = gpuwise.plan(job(), samples=10_000, on="v100-sxm2-16gb:1", precision="fp16")
    assert {one.forecast.strategy.precision for one in plan.plans} == {"fp16"}
    result = gpuwise.train(job(), steps=3, precision="fp16", micro_batch=8, run=tmp_path / "run")
    again = gpuwise.train(job(), steps=5, precision="fp16", micro_batch=8, run=tmp_path / "run")
    assert (result.steps, again.steps) == (3, 5)


def test_a_plan_for_several_devices_names_the_precision_that_runs_there() -> None:
    config = Gpt2Config(vocabulary=64, positions=16, width=32, layers=2, heads=4)
    language = Job(
        lambda: Gpt2(config), partial(next_token_batch, vocabulary=64, seq_len=16), token_loss, optimizer="adamw", name="gpt"
    )
    with pytest.raises(GpuwiseError, match="amp-fp16 keeps fp32 weights on any mesh"):
        gpuwise.plan(language, samples=10_000, on="v100-sxm2-16gb:4", precision="fp16")


def test_inference_in_fp16_is_the_recording_in_bf16_on_other_units() -> None:
    fp16, fp32 = (
        gpuwise.forecast("resnet50", on="v100-sxm2-16gb", mode="infer", micro_batch=8, precision=p) for p in ("fp16", "fp32")
    )
    assert fp16.memory.by_category["parameter"] == pytest.approx(fp32.memory.by_category["parameter"] / 2, rel=0.02)
    assert fp16.step_time_s.value < fp32.step_time_s.value


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mesh": Mesh(dp_replicate=2)}, UnsupportedError, "one device so far"),
        ({"offload": "optimizer"}, UnsupportedError, "master weights"),
        ({"keep_gradients": True}, UnsupportedError, "master weights"),
        ({"optimizer_in_backward": True, "accumulation": 1}, InputError, "cannot scale fp16"),
        ({"adapter": "lora"}, InputError, "adapters are trained in fp32"),
    ],
)
def test_what_does_not_go_with_fp16_names_another_precision(
    changes: dict[str, object], error: type[GpuwiseError], message: str
) -> None:
    from gpuwise.strategy import check_techniques

    with pytest.raises(error, match=message) as caught:
        check_techniques(STRATEGY.but(**changes))  # type: ignore[arg-type]
    assert any("--precision amp-" in way or "leave out" in way for way in caught.value.ways_out)
