"""A job's own step on the virtual device: the operations and the memory of the real one; what such a trace is not asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from benchmarks.memory_on_cpu import Case, compare
from torch import Tensor, nn
from torch.nn import functional as F
from tracing_samples import Counting

import gpuwise
from gpuwise.api.run_batch import batch_in_memory
from gpuwise.api.sources import source_of
from gpuwise.errors import InputError, PrecisionError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.job import Job
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, PHASES, Trace
from gpuwise.tracing import record, trace_family

SIZE = 16


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256))
        self.discriminator = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))


def step(context, batch):
    model, real = context.model, batch["x"]
    guess = F.binary_cross_entropy_with_logits
    fake = model.generator(torch.randn(len(real), 32, device=real.device))
    ones = real.new_ones(len(real), 1)
    context.zero_grad("discriminator")
    d = guess(model.discriminator(real), ones) + guess(model.discriminator(fake.detach()), 1 - ones)
    context.backward(d)
    context.update("discriminator")
    context.zero_grad("generator")
    g = guess(model.discriminator(fake), ones)
    context.backward(g)
    context.update("generator")
    return {"loss": d + g, "discriminator": d, "generator": g}


def gan(**changes) -> Job:
    fields = {
        "model": Gan,
        "batch": lambda n: {"x": torch.rand(n, 256)},
        "step": step,
        "name": "gan",
        "samples": 10_000,
        "optimizer": {
            name: lambda m, name=name: torch.optim.Adam(getattr(m, name).parameters(), lr=1e-3, fused=True)
            for name in ("discriminator", "generator")
        },
    }
    return Job(**(fields | changes))


def by_lbfgs(**options) -> Job:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch["x"]) - batch["y"]).pow(2).mean()

    return Job(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)),
        loss=loss,
        name="fit",
        batch=lambda n: {"x": torch.randn(n, 6), "y": torch.randn(n, 1)},
        optimizer=lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, **options),
    )


def held_bytes(trace: Trace, category: str) -> int:
    mine = (trace.storages.category == CATEGORIES.index(category)) & (trace.storages.born < 0)
    return int(trace.storages.size_bytes[mine].sum())


def names(trace: Trace, phase: str) -> Counter[str]:
    rows = trace.sequence.operation[trace.sequence.phase == PHASES.index(phase)]
    return Counter(trace.operations.name[row] for row in rows)


def test_both_updates_and_all_their_state_are_there():
    trace = record(gan(), Strategy(micro_batch=SIZE))
    parameters = sum(p.numel() for p in Gan().parameters())
    assert held_bytes(trace, "parameter") == 4 * parameters
    assert held_bytes(trace, "optimizer_state") == 2 * 4 * parameters + 4 * len(list(Gan().parameters()))  # and step counters
    assert names(trace, "optimizer")["aten._fused_adam_.default"] == 2
    assert set(trace.sequence.micro_step.tolist()) == {0, 2}
    assert trace.header.own_step
    # Three passes through the discriminator forward, and the generator's once; backward once more through each product.
    products = names(trace, "forward")["aten.addmm.default"]
    assert products == 3 * 2 + 2
    gradients = trace.storages.size_bytes[trace.storages.category == CATEGORIES.index("gradient")].sum()
    assert gradients == 4 * parameters  # what the generator's backward leaves in the discriminator is added to what is there


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_the_predicted_peak_is_the_real_one(precision):
    before = torch.get_float32_matmul_precision()
    row = compare(Case("GAN", gan(), Strategy(precision, micro_batch=SIZE)))
    assert abs(row.error) <= 0.00001, row
    torch.set_float32_matmul_precision(before)


def test_it_is_known_at_every_micro_batch():
    family = trace_family(gan(), Strategy())
    one = record(gan(), Strategy(micro_batch=50))
    there = family.at(micro_batch=50)
    assert there.flops() == one.flops()
    assert np.array_equal(there.storages.size_bytes, one.storages.size_bytes)
    with pytest.raises(UnsupportedError, match="cannot accumulate gradients before"):
        family.at(micro_batch=4, accumulation=2)


def test_scales_of_fp16_are_updated_once():
    trace = record(gan(), Strategy("amp-fp16", micro_batch=SIZE))
    result = names(trace, "optimizer") + names(trace, "backward") + names(trace, "forward")
    assert result["aten._amp_update_scale_.default"] == 1
    assert result["aten._amp_foreach_non_finite_check_and_unscale_.default"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 5, "history_size": 3},
        {"max_iter": 4, "history_size": 6, "line_search_fn": "strong_wolfe", "max_eval": 99},
    ],
    ids=["fixed steps", "line search"],
)
def test_lbfgs_is_recorded_as_it_runs_with_a_full_history(options):
    """Against PyTorch's own step in its steady state. With a line search the real one may look several times; products of
    forward and backward are compared an evaluation, the history an iteration."""
    job = by_lbfgs(tolerance_change=0.0, tolerance_grad=0.0, **options)
    trace = record(job, Strategy(micro_batch=SIZE), target="cpu")
    program = build(job, Strategy(micro_batch=SIZE), "cpu")
    torch.manual_seed(0)
    batch = job.batch(SIZE)
    for _ in range(4):
        program.step([batch])
    state = program.optimizer.state[next(program.model.parameters())]
    assert len(state["old_dirs"]) == options["history_size"]
    before = state["func_evals"], state["n_iter"]
    with Counting() as counting:
        program.step([batch])
    evaluations, iterations = (now - then for now, then in zip((state["func_evals"], state["n_iter"]), before, strict=True))
    assert iterations == options["max_iter"]
    ours = names(trace, "forward") + names(trace, "backward") + names(trace, "optimizer")
    expected = options["max_iter"] + ("line_search_fn" in options)
    (text,) = (line for line in trace.header.assumptions if "LBFGS" in line)
    assert f"assumed {expected} evaluations of the loss in {iterations} iterations" in text
    assert ours["aten.addmm.default"] == 2 * expected
    assert counting.found["aten.addmm.default"] == 2 * evaluations
    if evaluations == expected:  # always, without a line search
        for name in ("dot.default", "tanh_backward.default", "cat.default", "sub.Tensor", "mm.default"):
            assert ours[f"aten.{name}"] == counting.found[f"aten.{name}"], name
    assert held_bytes(trace, "optimizer_state") == pytest.approx(
        sum(
            t.nbytes
            for value in state.values()
            for t in (value if isinstance(value, list) else [value])
            if isinstance(t, Tensor) and t.numel() > 1
        ),
        rel=0.05,
    )


def test_lbfgs_without_a_line_search_is_what_it_says():
    job = by_lbfgs(max_iter=5, history_size=3)
    assert trace_family(job, Strategy()).covers({"micro_batch": 4096})
    forecast = gpuwise.forecast(job, on="rtx-4090", micro_batch=SIZE)
    assert any("assumed 5 evaluations of the loss in 5 iterations a step of LBFGS" in line for line in forecast.assumptions)
    on_turing = gpuwise.forecast(job, on="t4", micro_batch=SIZE)  # whose fast precision is fp16
    assert on_turing.strategy.precision == "fp32"
    assert any("fp16 gradients cannot be scaled inside a closure" in line for line in on_turing.assumptions)
    other = gpuwise.forecast(job, on="rtx-4090", micro_batch=SIZE, optimizer="adamw")  # one optimizer may be another
    assert not any("LBFGS" in line for line in other.assumptions)
    assert other.step_time_s.value < forecast.step_time_s.value / 3


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"accumulate": 2}, "cannot accumulate gradients before"),
        ({"optimizer": "sgd"}, "its own optimizers"),
        ({"optimizer_in_backward": True}, "not inside backward"),
        ({"offload": "optimizer"}, "not moved to the host"),
        ({"mode": "infer"}, "no forward pass"),
        ({"on": "rtx-4090:2"}, "averaged over devices"),
        ({"compile": True}, "not compiled as a whole"),
    ],
)
def test_a_forecast_refuses_what_has_no_meaning(settings, what):
    with pytest.raises((UnsupportedError, InputError), match=what) as caught:
        gpuwise.forecast(gan(), **{"on": "rtx-4090", "micro_batch": SIZE, **settings})
    assert caught.value.ways_out


def test_a_loss_beside_the_step_is_for_inference():
    job = gan(loss=lambda model, batch: model.generator(batch["x"][:, :32]).mean(), model=Called)
    assert gpuwise.forecast(job, on="rtx-4090", micro_batch=SIZE, mode="infer").flops_per_step > 0


class Called(Gan):
    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)


def test_it_is_planned_with_micro_batches_alone():
    result = gpuwise.plan(gan(), epochs=2, on="rtx-4090,t4", deadline="1d")
    assert {plan.device for plan in result.plans} >= {"t4"}
    for plan in result.plans:
        strategy = plan.strategy
        assert strategy.accumulation == strategy.mesh.devices == 1
        assert plan.steps == -(-20_000 // strategy.micro_batch)
    assert gpuwise.fit(gan(), on="t4").rows[0].largest_micro_batch > 10_000


@pytest.mark.parametrize(
    ("make", "capacity_bytes"),
    [
        *((gan, capacity_bytes) for capacity_bytes in (2**34, 20_000_000, 1)),
        *(pytest.param(by_lbfgs, capacity_bytes, marks=pytest.mark.slow) for capacity_bytes in (2**34, 20_000_000, 1)),
    ],
)
def test_a_run_accumulates_nothing_where_memory_is_short(make, capacity_bytes):
    job, chip = make(), next(chip for chip in load_catalog().chips.values() if chip.kind == "cpu")
    result = batch_in_memory(Strategy(micro_batch=4096), {}, source_of(job), chip, capacity_bytes, job)
    assert result.accumulation == 1
    assert result.micro_batch == {2**34: 4096, 1: 32}.get(capacity_bytes, result.micro_batch) <= 4096


def in_sigmoids(**changes) -> Job:
    return Job(
        **{
            "model": lambda: nn.Sequential(nn.Linear(256, 256), nn.Sigmoid()),
            "name": "bce",
            "samples": 10_000,
            "batch": lambda n: {"x": torch.rand(n, 256)},
            "loss": lambda model, batch: F.binary_cross_entropy(model(batch["x"]), batch["x"]),
            **changes,
        }
    )


def test_an_assumed_precision_falls_back_and_says_why():
    text = "assumed precision tf32: bce does not run in amp-bf16: RuntimeError: binary_cross_entropy does not run under"
    assert any(text in line for line in gpuwise.forecast(in_sigmoids(), on="rtx-4090").assumptions)
    assert any(text in line for line in gpuwise.fit(in_sigmoids(), on="rtx-4090").assumptions)
    assert any(text in line for line in gpuwise.compare(in_sigmoids(), on="rtx-4090,h100-sxm").assumptions)
    for plan in gpuwise.plan(in_sigmoids(), epochs=2, on="rtx-4090:1", deadline="1d").plans:
        assert plan.strategy.precision == "tf32"
        assert any(text in line for line in plan.assumptions)
    on_turing = gpuwise.forecast(in_sigmoids(), on="t4")
    assert on_turing.strategy.precision == "fp32"
    assert any("does not run in amp-fp16" in line for line in on_turing.assumptions)


def test_a_precision_that_is_asked_for_is_refused_with_the_reason():
    with pytest.raises(PrecisionError, match="does not run in amp-bf16: RuntimeError: binary_cross_entropy") as caught:
        gpuwise.forecast(in_sigmoids(), on="rtx-4090", precision="amp-bf16")
    assert caught.value.exit_code == 2
    assert caught.value.ways_out[0] == "--precision fp32"


def test_a_refused_precision_is_remembered_as_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    path = tmp_path / "job.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\nfrom gpuwise import Job\n"
        "job = Job(model=lambda: nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()), batch=lambda n: torch.rand(n, 8),\n"
        "          loss=lambda model, batch: F.binary_cross_entropy(model(batch), batch))\n"
    )
    for _ in range(2):
        forecast = gpuwise.forecast(f"{path}:job", on="rtx-4090")
        assert any("assumed precision tf32: job:job does not run in amp-bf16" in line for line in forecast.assumptions)


def test_an_error_of_every_precision_is_the_jobs():
    with pytest.raises(gpuwise.JobError, match="must have same reduction dim"):
        gpuwise.forecast(in_sigmoids(batch=lambda n: {"x": torch.rand(n, 200)}), on="rtx-4090")
