"""The virtual accelerator takes the kernels and casts that CUDA would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from tracing_samples import WIDTH, attention_job, batch_of, class_loss, mlp_job, operators

from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.tracing import accelerator, record
from gpuwise.tracing.kernels import autocast

FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"


def test_the_virtual_device_works_on_this_pytorch() -> None:
    assert accelerator.problem() is None


def test_without_it_cpu_kernels_are_traced_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "problem", lambda: "AttributeError: no such registration")
    header = record(mlp_job(), Strategy(micro_batch=2)).header
    assert header.target == "cpu"
    assert any("no such registration" in line for line in header.assumptions)


def test_shape_rules_that_pytorch_lacks_are_there_for_a_cpu_step_that_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    monkeypatch.setattr(accelerator, "problem", lambda: requests.append("registers") or "not on this PyTorch")
    header = record(mlp_job(), Strategy(micro_batch=2, optimizer="sgd"), target="cpu").header
    assert requests
    assert not any("not on this PyTorch" in line for line in header.assumptions)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("precision", "options", "kernel"),
    [
        ("amp-bf16", {}, FLASH),
        ("amp-fp16", {"causal": True}, FLASH),
        ("bf16", {}, FLASH),
        ("fp32", {}, EFFICIENT),
        ("fp32", {"causal": True}, EFFICIENT),
        ("amp-bf16", {"masked": True}, EFFICIENT),
    ],
)
def test_attention_takes_one_kernel_in_forward_recompute_and_backward(
    precision: str, options: dict[str, bool], kernel: str, recompute: str
) -> None:
    trace = record(attention_job(**options), Strategy(precision=precision, recompute=recompute, micro_batch=2))
    results = {
        phase: [n for n in operators(trace, phase) if "attention" in n] for phase in ("forward", "recompute", "backward")
    }
    assert results["forward"] == [kernel] * 4  # two layers, two micro-batches
    assert results["backward"] == [f"{kernel}_backward"] * 4
    assert results["recompute"] == ([kernel] * 4 if recompute == "full" else [])
    assert not {"bmm", "_softmax", "_safe_softmax", "baddbmm"} & set(operators(trace))


def test_heads_of_an_odd_size_are_padded_for_flash() -> None:
    trace = record(attention_job(head_size=12), Strategy(precision="bf16", micro_batch=2))
    assert operators(trace).count(FLASH) == 4
    assert "constant_pad_nd" in operators(trace, "forward")


def test_inference_takes_the_same_kernel_and_keeps_nothing_for_backward() -> None:
    trace = record(attention_job(), Strategy(precision="fp32", mode="infer", micro_batch=2))
    assert operators(trace).count(EFFICIENT) == 2
    assert set(trace.sequence.phase) == {0}


@pytest.mark.parametrize(
    ("activation", "fused"), [(nn.SiLU, "silu_backward"), (nn.Mish, "mish_backward"), (nn.GELU, "gelu_backward")]
)
def test_activations_have_one_kernel_in_backward(activation: type[nn.Module], fused: str) -> None:
    backward = operators(record(mlp_job(activation), Strategy(micro_batch=2)), "backward")
    assert backward.count(fused) == 2
    assert not {"sigmoid", "mul", "tanh"} & set(backward)


def test_rms_norm_is_one_kernel_each_way() -> None:
    job = Job(lambda: nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 5)), batch_of(WIDTH), class_loss)
    trace = record(job, Strategy(precision="bf16", micro_batch=2))
    assert operators(trace, "forward").count("_fused_rms_norm") == 2
    assert operators(trace, "backward").count("_fused_rms_norm_backward") == 2
    assert not {"rsqrt", "pow"} & set(operators(trace))


LISTS = {
    "LOWER_PRECISION_FP": autocast.LOWER,
    "FP32": autocast.FULL,
    "FP32_SET_OPT_DTYPE": autocast.FULL_RESULT,
    "PROMOTE": autocast.PROMOTE,
}


@pytest.mark.parametrize("name", LISTS)
def test_cast_lists_are_those_of_the_installed_pytorch(name: str) -> None:
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    if not header.exists():
        pytest.skip("this PyTorch ships no headers")
    text = header.read_text().replace("\\\n", " ")
    macro = re.search(rf"#define AT_FORALL_{name}\(_\)(.*)", text)
    assert macro is not None
    theirs = {".".join(part.split(", ")) for part in re.findall(r"_\((\w+(?:, \w+)?)\)", macro[1])}
    theirs = {operator for operator in theirs if "imname" not in operator}  # of named tensors, which older versions have
    assert set(filter(autocast.cast_on_cuda, LISTS[name])) == theirs


@pytest.mark.parametrize(
    ("loss", "operator", "dtype"),
    [
        (lambda x, w: (x @ w).exp().sum(), "exp", "float32"),
        (lambda x, w: (x @ w).softmax(-1).sum(), "_softmax", "float32"),
        (lambda x, w: (x @ w).relu().sum(), "relu", "bfloat16"),
        (lambda x, w: (x @ w).sum(), "mm", "bfloat16"),
    ],
)
def test_autocast_casts_by_operator(loss: object, operator: str, dtype: str) -> None:
    def through(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return loss(batch["x"], model.weight)  # type: ignore[operator]

    trace = record(
        Job(lambda: nn.Linear(WIDTH, WIDTH), batch_of(WIDTH), through), Strategy(precision="amp-bf16", micro_batch=2)
    )
    assert {d for n, d in zip(trace.operations.name, trace.operations.dtype, strict=True) if n.split(".")[1] == operator} == {
        dtype
    }


def test_a_weight_is_cast_once_a_region_however_often_it_is_used() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    trace = record(Job(Twice, batch_of(WIDTH), class_loss), Strategy(precision="amp-bf16", micro_batch=2))
    casts = [
        s
        for s, c, p in zip(trace.storages.size_bytes, trace.storages.module, trace.storages.born, strict=True)
        if s == 2 * WIDTH * WIDTH and trace.sequence.phase[p] == 0 and p >= 0
    ]
    assert len(casts) == 2  # one for each micro-batch
