"""4-bit and float8 products, and Hugging Face's masks, on the virtual accelerator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.test_runtime_adapters import JOB, LINEARS, RANK, WIDTH

from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import units_for
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.strategy import Strategy
from gpuwise.trace import KINDS, PHASES, Trace
from gpuwise.trace.memory import live_bytes
from gpuwise.tracing import record
from gpuwise.tracing.describe import describe
from gpuwise.tracing.kernels.libraries import answering_as_on_a_gpu
from gpuwise.tracing.operator_call import OperatorCall

pytestmark = pytest.mark.filterwarnings("ignore")


def calls(trace: Trace, name: str) -> list[int]:
    """Positions where an operator of this name runs in the first micro-batch."""
    wanted = [i for i, operation in enumerate(trace.operations.name) if f".{name}." in operation]
    return np.flatnonzero(np.isin(trace.sequence.operation, wanted) & (trace.sequence.micro_step == 0)).tolist()


@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("amp-bf16", 2), ("amp-fp16", 2), ("bf16", 2)])
def test_a_packed_weight_is_unpacked_for_each_product_and_freed(precision: str, itemsize: int) -> None:
    trace = record(JOB, Strategy(micro_batch=4, adapter="qlora", adapter_rank=RANK, precision=precision))
    storages, unpacked = trace.storages, calls(trace, "dequantize_4bit")
    # Forward of each of the four layers; backward of all: what comes before an adapter needs a gradient, but the first.
    assert len(unpacked) == 4 + 3
    for position in unpacked:
        [row] = np.flatnonzero(storages.born == position)
        assert storages.size_bytes[row] == itemsize * 4 * WIDTH * WIDTH
        assert storages.died[row] <= position + 1  # the product that reads it


def test_products_with_packed_weights_count_as_products() -> None:
    plain, packed = (record(JOB, Strategy(micro_batch=4, adapter=a, adapter_rank=RANK)) for a in ("lora", "qlora"))
    gemm = KINDS.index("gemm")

    def flops(trace: Trace) -> int:
        runs = trace.sequence.operation[trace.operations.kind[trace.sequence.operation] == gemm]
        return int(trace.operations.column("flops")[runs].sum())

    assert flops(plain) == flops(packed)


def test_the_same_is_recorded_twice() -> None:
    """Nothing fake stays behind in what bitsandbytes keeps for the process."""
    strategy = Strategy(micro_batch=4, adapter="qlora", adapter_rank=RANK)
    first, second = record(JOB, strategy), record(JOB, strategy)
    assert live_bytes(first).peak_bytes == live_bytes(second).peak_bytes
    from bitsandbytes.functional import name2qmap

    assert all(type(table) is torch.Tensor for table in name2qmap.values())


def test_recomputation_lowers_the_memory_of_qlora() -> None:
    strategy = Strategy(micro_batch=64, adapter="qlora", adapter_rank=RANK, precision="amp-bf16")
    kept, again = (live_bytes(record(JOB, replace(strategy, recompute=r))).peak_bytes for r in ("none", "full"))
    assert again < kept


def test_fp8_products_are_recorded_in_float8() -> None:
    trace = record(JOB, Strategy(micro_batch=4, precision="fp8"))
    positions = calls(trace, "_scaled_mm")
    assert len(positions) == 3 * 4  # three products of each layer in the blocks
    dtypes = [trace.operations.dtype[o] for o in trace.sequence.operation[positions]]
    assert sorted(dtypes) == ["float8_e4m3fn"] * 4 + ["float8_e5m2"] * 8  # gradients come first in backward's
    columns = {n: trace.operations.column(n)[trace.sequence.operation[positions]] for n in ("m", "n", "k", "flops")}
    assert (columns["flops"] == 2 * columns["m"] * columns["n"] * columns["k"]).all()
    assert columns["flops"].sum() == 3 * 2 * (4 * 16) * LINEARS


def test_fp8_casts_live_for_the_length_of_a_product_and_backward_keeps_the_input_in_bf16() -> None:
    trace = record(JOB, Strategy(micro_batch=4, precision="fp8"))
    storages, product = trace.storages, calls(trace, "_scaled_mm")[0]
    tokens, large = 4 * 16, storages.size_bytes > 64  # smaller ones are scales
    assert {tokens * WIDTH, 4 * WIDTH * WIDTH} <= set(storages.size_bytes[large & (storages.died == product)].tolist())
    backward = trace.sequence.phase[np.minimum(storages.died, len(trace.sequence) - 1)] == PHASES.index("backward")
    kept = (storages.born >= 0) & (storages.born < product) & (storages.born > product - 40) & backward
    assert 2 * tokens * WIDTH in storages.size_bytes[kept]
    assert tokens * WIDTH not in storages.size_bytes[kept]


def test_float8_is_priced_at_the_rate_of_its_units() -> None:
    chip = load_catalog().chip("h100-80gb-sxm")
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        units = units_for(chip, dtype=dtype, kind="gemm", precision="fp8", parameters=parameters())
        assert (units.rate, units.peak_flops_per_s) == ("tensor", chip.peak_flops_per_s["fp8"])


def test_float8_on_a_chip_without_it_is_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedError, match="amp-bf16"):
        units_for(
            load_catalog().chip("a100-80gb-sxm"), dtype="float8_e4m3fn", kind="gemm", precision="fp8", parameters=parameters()
        )


def test_a_product_of_int8_or_fp4_is_described_in_the_type_it_multiplies() -> None:
    a, b = torch.empty(64, 128, dtype=torch.int8, device="meta"), torch.empty(128, 32, dtype=torch.int8, device="meta")
    result = torch.empty(64, 32, dtype=torch.int32, device="meta")
    row = describe(OperatorCall(torch.ops.aten._int_mm.default, (a, b), {}, [result]), [result])
    assert (KINDS[row.kind], row.dtype, row.values.flops, row.values[5:9]) == (
        "gemm",
        "int8",
        2 * 64 * 32 * 128,
        (1, 64, 32, 128),
    )
    a, b = (t.view(torch.uint8).view(torch.float4_e2m1fn_x2) for t in (a, b))  # two numbers a byte, along k
    scale = torch.empty(1024, dtype=torch.float8_e4m3fn, device="meta")
    row = describe(OperatorCall(torch.ops.aten._scaled_mm.default, (a, b, scale, scale), {}, [result]), [result])
    assert (KINDS[row.kind], row.dtype, row.values.flops, row.values[5:9]) == (
        "gemm",
        "float4_e2m1fn_x2",
        2 * 64 * 32 * 256,
        (1, 64, 32, 256),
    )


def test_questions_of_libraries_are_answered_for_the_virtual_device_and_then_as_before() -> None:
    before = torch.is_autocast_enabled, torch.get_autocast_gpu_dtype
    with answering_as_on_a_gpu("cpu"):
        assert not torch.is_autocast_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled()
            assert not torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_gpu_dtype() == torch.bfloat16
    assert (torch.is_autocast_enabled, torch.get_autocast_gpu_dtype) == before


def test_transformers_makes_no_mask_that_a_gpu_would_not_have() -> None:
    from gpuwise.job.torchvision_cpu import make_importable

    make_importable()
    import transformers

    from gpuwise.job import Job

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, use_cache=False, attn_implementation="sdpa")
    job = Job(
        model=lambda: transformers.AutoModelForCausalLM.from_config(config),
        batch=lambda n: {"tokens": torch.randint(0, 50, (n, 128))},
        loss=lambda model, batch: model(input_ids=batch["tokens"], labels=batch["tokens"]).loss,
    )
    trace = record(job, Strategy(micro_batch=2, precision="amp-bf16"))
    written = zip(trace.operations.name, trace.operations.column("bytes_written").tolist(), strict=True)
    masks = ("aten.where.self", "aten.le.Tensor", "aten.eq.Tensor")
    assert not [name for name, size in written if name in masks and size >= 128 * 128]
    assert any("flash" in name for name in trace.operations.name)
    assert any("all()" in line for line in trace.header.assumptions)
