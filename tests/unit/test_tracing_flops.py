"""Operations counted, against PyTorch's own counter: a multiply-add is two; a causal kernel skips half, which PyTorch's
counter does not know."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from tracing_samples import attention_job, batch_of, class_loss, cnn_job, mlp_job

from gpuwise.job import Job, checked_batch
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy
from gpuwise.trace import COLUMNS, KINDS
from gpuwise.tracing import accelerator, record, virtual_device


def counted(job: Job, strategy: Strategy) -> int:
    accelerator.register()
    with warnings.catch_warnings(), virtual_device.VirtualMode(), torch.autograd.set_multithreading_enabled(False):
        warnings.simplefilter("ignore")
        program = build(job, strategy, "virt")
        with FlopCounterMode(display=False) as counter:
            program.forward_backward(checked_batch(job, strategy.micro_batch))
    return counter.get_total_flops()


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_attention_and_products(precision: str, recompute: str) -> None:
    strategy = Strategy(precision=precision, recompute=recompute, micro_batch=3)
    assert record(attention_job(), strategy).flops() == counted(attention_job(), strategy)


@pytest.mark.parametrize("job", [mlp_job(), cnn_job()], ids=["mlp", "cnn"])
def test_products_and_convolutions(job: Job) -> None:
    strategy = Strategy(micro_batch=3)
    assert record(job, strategy).flops() == counted(job, strategy) > 0


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_grouped_convolutions_do_their_share(groups: int) -> None:
    """Counted by hand: PyTorch's counter leaves the groups out of the gradient of the weight."""
    job = Job(
        lambda: nn.Sequential(nn.Conv2d(8, 16, 3, groups=groups), nn.Flatten(1), nn.Linear(16 * 14 * 14, 5)),
        batch_of(8, 16, 16),
        class_loss,
    )
    trace = record(job, Strategy(micro_batch=3))
    forward = 2 * 3 * 14 * 14 * 16 * (8 // groups) * 9
    convolutions = trace.operations.kind == KINDS.index("conv")
    # Forward and the gradient of the weight; the batch itself needs no gradient.
    assert (trace.counts() * trace.operations.column("flops"))[convolutions].sum() == 2 * forward


def test_model_flops_count_causal_attention_in_full_and_no_recomputation() -> None:
    job = attention_job(causal=True)
    strategy = Strategy(precision="bf16", micro_batch=3)
    trace = record(job, strategy)
    # PyTorch's counter takes the scores that backward computes again as work of the model; the usual rule does not.
    assert counted(job, strategy) > trace.model_flops > trace.flops()
    causal = trace.operations.column("causal") == 1
    attention = trace.counts() * trace.operations.column("flops") * causal
    assert trace.flops() + attention.sum() == counted(job, strategy)


def test_contractions_carry_their_dimensions() -> None:
    trace = record(mlp_job(), Strategy(micro_batch=7))
    forward = {
        tuple(trace.operations.values[i][[COLUMNS.index(c) for c in ("batch", "m", "n", "k")]].tolist())
        for i, name in enumerate(trace.operations.name)
        if name == "aten.addmm.default"
    }
    assert forward == {(1, 7, 96, 64), (1, 7, 5, 96)}
