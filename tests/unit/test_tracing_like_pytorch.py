"""Where PyTorch decides by the type of tensors, recordings decide as it does for real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from tracing_samples import Counting

import gpuwise
from gpuwise.errors import StepFailedError, UnsupportedError
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record

LAYERS = 12
FP32 = Strategy(precision="fp32", micro_batch=4)
Optimizers = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(LAYERS)))


def job(optimizer: str | Optimizers = "adamw", **changes: object) -> Job:
    fields = {
        "model": model,
        "batch": lambda n: {"x": torch.rand(n, 32)},
        "loss": lambda m, batch: m(batch["x"]).square().mean(),
        "optimizer": optimizer,
        "name": "deep",
        "samples": 64,
    }
    return Job(**{**fields, **changes})


def calls(trace: Trace) -> Counter[str]:
    """Calls of each operator of a step."""
    return Counter(trace.operations.name[row] for row in trace.sequence.operation)


@pytest.mark.parametrize(
    "of",
    [
        lambda p, **kernels: torch.optim.AdamW(p, lr=1e-3, **kernels),
        lambda p, **kernels: torch.optim.SGD(p, lr=1e-2, momentum=0.9, **kernels),
    ],
    ids=["adamw", "sgd"],
)
def test_an_optimizer_of_the_job_updates_all_parameters_together_on_a_gpu_and_one_by_one_on_a_cpu(of):
    by_default, together, one_by_one = (lambda p, k=k: of(p, **k) for k in ({}, {"foreach": True}, {"foreach": False}))
    on_gpu = [record(job(each), FP32) for each in (by_default, together)]
    assert calls(on_gpu[0]) == calls(on_gpu[1])
    assert sum("_foreach" in name for name in calls(on_gpu[0]).elements()) > 0
    on_cpu = [calls(record(job(each), FP32, target="cpu")) for each in (by_default, one_by_one)]
    assert on_cpu[0] == on_cpu[1]


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
def test_gradients_are_clipped_by_the_operators_of_plain_pytorch(target: str):
    """PyTorch scales lists of gradients on GPUs and on CPUs alike."""
    plain = model()
    plain(torch.rand(4, 32)).square().mean().backward()
    with Counting() as counted:
        torch.nn.utils.clip_grad_norm_(list(plain.parameters()), 1.0)
    clipped, free = (calls(record(job(clip_norm=norm), FP32, target=target)) for norm in (1.0, None))
    added = clipped - free
    for name in ("aten._foreach_norm.Scalar", "aten._foreach_mul_.Tensor", "aten.linalg_vector_norm.default"):
        assert added[name] == counted.found[name], name


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
def test_operands_of_two_types_fail_as_in_the_step(target: str):
    doubles = job(batch=lambda n: {"x": torch.rand(n, 32, dtype=torch.float64)})
    with pytest.raises(RuntimeError, match="dtype"):
        doubles.loss(model(), doubles.batch(2))
    with pytest.raises(StepFailedError, match=r"torch.float64 and torch.float32"):
        record(doubles, FP32, target=target)


def test_a_run_says_what_its_forecast_had_to_guess():
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out = m(batch["x"])
        return out.square().mean() if out.norm().item() > 0 else out.mean()

    (note,) = [
        note
        for note in gpuwise.train(job(loss=loss), steps=2, micro_batch=4, precision="fp32", run=None).typed_notes
        if note.kind == "value-not-known"
    ]
    assert "test_tracing_like_pytorch.py" in note.text


def test_a_chip_without_bf16_says_that_muon_needs_it():
    blocks = job(model=lambda: nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3))))
    with pytest.raises(UnsupportedError, match="muon's updates"):
        gpuwise.forecast(blocks, on="t4", micro_batch=4, optimizer="muon", precision="fp32")


def test_muon_is_refused_before_any_forecast_where_it_updates_nothing():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    with pytest.raises(UnsupportedError, match="no matrices in repeated blocks"):
        gpuwise.forecast(job(model=Flat), on="h100-sxm", micro_batch=4, optimizer="muon")
