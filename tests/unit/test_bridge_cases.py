"""The ranks of benchmarks.hopper_blackwell: sizes against published counts, kernels against plain counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.support.bridge_kernels import in_blocks, with_core_kernels
from benchmarks.support.bridge_model import Decoder, decoder_job
from benchmarks.support.bridge_precision import CURRENT_HOPPER, MXFP8, LowPrecision
from benchmarks.support.bridge_shape import SHAPES, DecoderShape, Experts, RankShape
from benchmarks.support.bridge_step import CoreOptions, core_ranks

from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import Trace
from gpuwise.trace.tables import KINDS, PHASES
from gpuwise.tracing.record import record

DENSE = DecoderShape("dense", 64, 6, 4, 2, 16, 256, hidden=128)
MIXTURE = DecoderShape("mixture", 64, 6, 4, 2, 16, 256, experts=Experts(8, 2, 32), head_norms=True)
LENGTH = 32


def step(shape: DecoderShape, *, tp: int = 1, ep: int = 1, accumulation: int = 4) -> Trace:
    return record(decoder_job(RankShape(shape, LENGTH, tp, ep)), Strategy(precision="bf16")).with_accumulation(accumulation)


def products(trace: Trace) -> np.ndarray:
    return trace.operations.kind[trace.sequence.operation] == KINDS.index("gemm")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("LLAMA3_8B", 8_030_261_248),
        ("LLAMA3.1_405B", 405_853_388_800),
        ("Qwen3_30B_a3B", 30_532_122_624),
        ("Qwen3_235B_a22B", 235_093_634_560),
    ],
)
def test_models_have_the_published_number_of_parameters(name: str, count: int) -> None:
    with torch.device("meta"):
        model = Decoder(RankShape(SHAPES[name], 4096))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("shape", [DENSE, MIXTURE])
def test_a_rank_multiplies_its_share_of_what_one_device_does(shape: DecoderShape) -> None:
    whole, heads = step(shape), step(shape, tp=2)
    flops = [int(trace.operations.column("flops")[trace.sequence.operation[products(trace)]].sum()) for trace in (whole, heads)]
    assert flops[1] * 2 == flops[0]
    # Ranks of ep hold fewer experts and multiply as many tokens.
    if shape.experts:
        split = step(shape, ep=4)
        assert int(split.operations.column("flops")[split.sequence.operation[products(split)]].sum()) == flops[0]


@pytest.mark.parametrize("low", [CURRENT_HOPPER, MXFP8])
def test_linear_layers_of_blocks_multiply_quantized_operands(low: LowPrecision) -> None:
    trace = with_core_kernels(step(DENSE), low, tp=1)
    inside = in_blocks(trace)[trace.sequence.module] & products(trace)
    dtypes = np.array(trace.operations.dtype)[trace.sequence.operation]
    assert set(dtypes[inside]) == {low.dtype}
    assert set(dtypes[products(trace) & ~inside]) == {"bfloat16"}
    names = np.array(trace.operations.name)[trace.sequence.operation]
    first = (names == "quantize") & (trace.sequence.micro_step == 0)
    forward = first & (trace.sequence.phase == PHASES.index("forward"))
    # Forward quantizes what each layer reads: qkv and up behind norms, out and down not; backward what each layer makes.
    plain = low.read * LENGTH * (64 + 128) + low.normed_read * LENGTH * (64 + 64)
    read = trace.operations.column("bytes_read")[trace.sequence.operation]
    assert read[forward].sum() == 6 * plain
    assert read[first & ~forward].sum() == 6 * low.read * LENGTH * (128 + 64 + 256 + 64)


def test_gradients_of_weights_are_added_up_inside_products() -> None:
    before, after = step(DENSE), with_core_kernels(step(DENSE), None, tp=1)
    sums = [
        int((np.array(trace.operations.name)[trace.sequence.operation] == "aten.add_.Tensor").sum())
        for trace in (before, after)
    ]
    assert sums == [6 * 6 + 3, 2 * 6 + 1]  # those of norms stay


def test_embedding_and_output_layer_count_as_a_layer_each() -> None:
    strategy = Strategy(
        precision="bf16",
        accumulation=8,
        mesh=Mesh(pp=2, dp_shard=2),
        parallelism=Parallelism(pipeline_schedule="interleaved-1f1b", stages_per_rank=4),
    )
    options = CoreOptions(None, tp_overlap=False, expert_overlap=False, fused_dispatch=False, domain=8)
    ranks = core_ranks(step(DENSE, accumulation=8), DENSE, strategy, options)
    layers = [rank.trace.header.blocks for rank in ranks]
    assert layers == [("layers.1", "layers.3", "layers.5"), ("layers.0", "layers.2", "layers.4")]


def test_a_token_travels_once_to_each_machine_of_a_fused_dispatcher() -> None:
    strategy = Strategy(precision="bf16", accumulation=4, mesh=Mesh(dp_shard=4, ep=4))
    sizes = {}
    for fused in (False, True):
        options = CoreOptions(None, tp_overlap=False, expert_overlap=False, fused_dispatch=fused, domain=2)
        (rank,) = core_ranks(step(MIXTURE, ep=4), MIXTURE, strategy, options)
        sizes[fused] = next(c for c in rank.communication.collectives if c.group.axis == "ep")
    assert sizes[False].payload_bytes / sizes[False].calls == LENGTH * 2 * 64 * 2
    assert sizes[True].group.ranks == 2
    assert sizes[True].payload_bytes / sizes[True].calls == LENGTH * 1.5 * 64 * 2
