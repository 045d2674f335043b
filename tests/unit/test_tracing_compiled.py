"""Compiled steps: what the partitioner keeps, what fusion never stores, and models that are no single graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from tracing_samples import attention_job, batch_of, class_loss, cnn_job, mlp_job, operators, rows

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.notes.job import assumed_one_graph
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, Trace, live_bytes
from gpuwise.tracing import family as tracing_family
from gpuwise.tracing import record, trace_family
from gpuwise.tracing.compile import graphs as compiled_graphs
from gpuwise.tracing.compile.fusion import Schedule, schedule
from gpuwise.tracing.compile.graphs import Graphs
from gpuwise.tracing.family import disagreement

LLAMA = Job(
    lambda: Llama(LlamaConfig(vocabulary=128, width=64, layers=2, heads=4, kv_heads=2, hidden=192)),
    partial(next_token_batch, vocabulary=128, seq_len=32),
    token_loss,
)
COMPILED = Strategy(micro_batch=4, compile=True)
TARGETS = ["accelerator", "cpu"]


def kept_bytes(trace: Trace) -> int:
    """What the first micro-batch's forward leaves for its backward, model and batch not counted."""
    storages, sequence = trace.storages, trace.sequence
    first_backward = int(np.flatnonzero(sequence.phase > 0)[0])
    activation = storages.category == CATEGORIES.index("activation")
    alive = activation & (storages.born < first_backward) & (storages.died >= first_backward)
    return int(storages.size_bytes[alive].sum())


def kernels_of(function: Callable[..., Any], *args: Tensor, on_cpu: bool = False) -> Schedule:
    return schedule(make_fx(function, tracing_mode="fake")(*args).graph, on_cpu=on_cpu)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_kept_is_what_the_partitioner_says(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    partition = Graphs.partition

    def spy(self: Graphs, joint: Any, inputs: Any, **options: Any) -> Any:
        forward, backward = partition(self, joint, inputs, **options)
        plan = schedule(forward.graph, on_cpu=target == "cpu")
        saved = next(n for n in forward.graph.nodes if n.op == "output").args[0][options["num_fwd_outputs"] :]
        values = {plan.value_of[node] for node in saved if node in plan.value_of}
        kept.append(sum(v.node.meta["val"].nbytes for v in values if v.node.op == "call_function"))
        return forward, backward

    monkeypatch.setattr(Graphs, "partition", spy)
    trace = record(attention_job(causal=True), COMPILED, target=target)
    # One graph for the block whose input is the batch, which needs no gradient, and one for the other, whose input is kept
    # too. Around the blocks: the mean that the head reads (4 of width 64), then the log-probabilities (4 × 5 fp32), the
    # weight of all labels, the loss, its share and 1.
    around = 4 * 64 * 4 + 4 * 5 * 4 + 4 * 4
    assert len(kept) == 2
    assert kept_bytes(trace) == sum(kept) + 4 * 16 * 64 * 4 + around


@pytest.mark.parametrize("target", TARGETS)
def test_a_compiled_language_model_keeps_less_than_an_eager_one(target: str) -> None:
    eager, compiled = (record(LLAMA, Strategy(micro_batch=8, compile=c), target=target) for c in (False, True))
    assert kept_bytes(compiled) < kept_bytes(eager)
    assert live_bytes(compiled).peak_bytes < live_bytes(eager).peak_bytes
    assert assumed_one_graph() in compiled.header.assumption_notes
    assert compiled.model_flops == eager.model_flops  # products and attention are the same kernels


def test_the_optimizer_is_not_compiled() -> None:
    eager, compiled = (record(mlp_job(), Strategy(micro_batch=4, compile=c)) for c in (False, True))
    assert operators(compiled, "optimizer") == operators(eager, "optimizer")
    assert live_bytes(compiled).persistent_bytes == live_bytes(eager).persistent_bytes


def test_attention_is_the_flash_kernel_and_everything_around_it_is_fused() -> None:
    trace = record(attention_job(causal=True), Strategy(micro_batch=4, precision="amp-bf16", compile=True))
    names = operators(trace, "forward")
    assert names.count("_scaled_dot_product_flash_attention") == 2 * 2  # layers, micro-batches
    assert "native_layer_norm" not in names
    assert {"elementwise", "reduction"} <= set(names)
    assert "layers.0.qkv" in {module for _, _, _, module in rows(trace)}


def test_batch_norm_is_taken_apart_and_convolutions_are_not() -> None:
    names = operators(record(cnn_job(), COMPILED), "forward")
    assert "convolution" in names
    assert "cudnn_batch_norm" not in names


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_checkpointed_blocks_are_run_again_in_backward(recompute: str) -> None:
    job = attention_job(seq_len=64, causal=True)
    whole, again = (record(job, COMPILED.but(recompute=r)) for r in ("none", recompute))
    assert kept_bytes(again) < kept_bytes(whole)
    products = [name for name in operators(again, "recompute") if name in ("mm", "addmm")]
    assert bool(products) == (recompute == "full")  # qkv is kept by the selective policy, and nobody needs the other
    assert again.model_flops == whole.model_flops
    assert assumed_one_graph() in again.header.assumption_notes


def test_blocks_that_are_alike_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    partition = Graphs.partition

    def spy(self: Graphs, joint: Any, inputs: Any, **options: Any) -> Any:
        made.append(joint)
        return partition(self, joint, inputs, **options)

    monkeypatch.setattr(Graphs, "partition", spy)
    record(LLAMA, COMPILED)
    assert len(made) == 1


def test_each_block_has_its_own_modules() -> None:
    trace = record(attention_job(causal=True), COMPILED)
    for phase in ("forward", "backward"):
        placed = {module for _, where, _, module in rows(trace) if where == phase}
        assert {"layers.0.qkv", "layers.1.qkv"} <= placed


def test_a_fault_of_the_simulation_is_not_taken_for_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(compiled_graphs, "schedule", broken)
    with pytest.raises(JobError, match="a fault of ours"):
        record(attention_job(causal=True), COMPILED)


def test_inference_keeps_nothing() -> None:
    trace = record(attention_job(causal=True), Strategy(micro_batch=4, mode="infer", compile=True))
    assert set(trace.sequence.phase) == {0}
    assert assumed_one_graph() in trace.header.assumption_notes


def test_a_family_of_a_compiled_step_is_what_is_recorded_at_other_sizes() -> None:
    family = trace_family(mlp_job(), COMPILED)
    for micro_batch in (5, 100):
        direct = record(mlp_job(), COMPILED.but(micro_batch=micro_batch))
        assert disagreement(family.at(micro_batch=micro_batch), direct) == 0


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(row) for row in x])


def test_a_compiled_step_whose_program_changes_with_the_batch_has_its_own_micro_batch_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing_family, "COMPILED_BATCHES", (2, 4))  # a compiled loop over 512 samples takes minutes
    family = trace_family(Job(Loop, batch_of(64), class_loss), COMPILED)
    assert family.covers({"micro_batch": 4})
    assert not family.covers({"micro_batch": 5})


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if y.sum() > 0 else -y


def test_a_model_that_branches_on_its_data_is_recorded_as_eager_and_said_so() -> None:
    job = Job(Branching, mlp_job().batch, mlp_job().loss)
    eager, compiled = (record(job, Strategy(micro_batch=4, compile=c)) for c in (False, True))
    assert any("would not take a compiled part as one graph" in text for text in compiled.header.assumptions)
    assert assumed_one_graph() not in compiled.header.assumption_notes
    assert live_bytes(compiled).peak_bytes == live_bytes(eager).peak_bytes
    assert operators(compiled) == operators(eager)


def test_elementwise_operators_are_one_kernel_that_stores_its_result() -> None:
    plan = kernels_of(lambda x: (x * 2 + 1).relu(), torch.zeros(8, 16))
    assert [len(stored) for stored in plan.stores] == [1]


def test_a_softmax_is_one_kernel() -> None:
    def softmax(x: Tensor) -> Tensor:
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    plan = kernels_of(softmax, torch.zeros(8, 16))
    assert len(plan.kernels) == 1
    assert len(plan.stores[0]) == 1


def test_a_product_ends_a_kernel_and_its_inputs_are_stored() -> None:
    plan = kernels_of(lambda x, w: (x + 1).mm(w) + 1, torch.zeros(8, 8), torch.zeros(8, 8))
    assert [kernel.library is None for kernel in plan.kernels] == [True, False, True]
    assert plan.last_use[plan.stores[0][0]] == 1


def test_a_cheap_value_is_computed_twice_rather_than_stored() -> None:
    def twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return (y * 2).mm(w), y.sum(0)

    plan = kernels_of(twice, torch.zeros(8, 8), torch.zeros(8, 8))
    assert sum(len(stored) for stored in plan.stores) == 3  # y * 2, the product and the sum


def test_a_cpu_stores_what_costs_an_exponential() -> None:
    def twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return (y * 2).mm(w), y.sum(0)

    arguments = torch.zeros(8, 8), torch.zeros(8, 8)
    on_gpu, on_cpu = (sum(map(len, kernels_of(twice, *arguments, on_cpu=c).stores)) for c in (False, True))
    assert (on_gpu, on_cpu) == (3, 4)


def test_a_result_overwrites_an_input_that_nothing_else_in_the_kernel_reads() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x.mm(w)
        return y.relu(), y + 1

    one = kernels_of(lambda x, w: x.mm(w).relu(), torch.zeros(8, 8), torch.zeros(8, 8))
    two = kernels_of(function, torch.zeros(8, 8), torch.zeros(8, 8))
    assert [sum(map(len, plan.donors)) for plan in (one, two)] == [1, 0]
