"""Attention's kernel models: what follows from shapes, and that more work is never quicker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels import attention, attention_decode, class_times
from gpuwise.cost.kernels.classes import class_of
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog

CATALOG = Catalog()
HARDWARE = Hardware(peak_flops_per_s=1e15, bandwidth_bytes_per_s=1e12, units=100, cache_bytes=5e7)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def shapes(*, batch=4, heads=16, kv_heads=None, queries=2048, keys=None, head=64, causal=False, backward=False, element=2.0):
    """One attention as the trace describes it."""
    keys, kv_heads = keys or queries, kv_heads or heads
    query, key = element * batch * queries * heads * head, element * batch * keys * kv_heads * head
    numbers = {
        "flops": (10 if backward else 4) * batch * heads * queries * keys * head / (2 if causal else 1),
        "bytes_read": 3 * query + 2 * key if backward else query + 2 * key,
        "bytes_written": query + 2 * key if backward else query,
        "kernels": 3 if backward else 1,
        "batch": batch * heads,
        "m": queries,
        "n": keys,
        "k": head,
        "causal": causal,
        "element_bytes": element,
    }
    return Shapes(**{name: np.array([float(value)]) for name, value in numbers.items()})


def time_s(chip, kernel_class="attention", numerics="bf16", **sizes):
    chip = CATALOG.chip(chip) if isinstance(chip, str) else chip
    sizes.setdefault("backward", kernel_class.endswith("_backward"))
    times = class_times(
        kernel_class,
        DTYPES[numerics],
        shapes(**sizes, element=4.0 if numerics == "fp32" else 2.0),
        chip,
        precision="fp32",
        parameters=parameters(),
        calibration=calibration(chip),
        busy=0.0,
    )
    return float(times.device_s[0])


def test_heads_that_share_keys_are_known_from_the_bytes_read():
    assert attention.kv_heads(shapes(batch=3, heads=32, kv_heads=8)) == pytest.approx(24)
    assert attention.kv_heads(shapes(batch=3, heads=32)) == pytest.approx(96)
    assert attention.key_bytes(shapes(batch=3, heads=32, kv_heads=8, queries=10, head=64)) == pytest.approx(
        2 * 2 * 24 * 10 * 64
    )


def test_a_causal_mask_leaves_out_half_except_on_the_diagonal():
    full = attention.terms(shapes(queries=4096), HARDWARE).seconds["compute"]
    half = attention.terms(shapes(queries=4096, causal=True), HARDWARE).seconds["compute"]
    assert half / full == pytest.approx(0.5 + attention.BLOCK / 4096)


def test_short_sequences_fill_whole_tiles_and_grouped_heads_share_them():
    alone = attention.terms(shapes(queries=16), HARDWARE).seconds["compute"]
    tile = attention.terms(shapes(queries=128, keys=16), HARDWARE).seconds["compute"]
    shared = attention.terms(shapes(queries=16, kv_heads=2), HARDWARE).seconds["compute"]
    assert alone == pytest.approx(tile)
    assert shared == pytest.approx(alone / 8)


def test_the_last_tile_of_a_causal_mask_meets_all_keys():
    causal, full = (attention.terms(shapes(causal=causal), HARDWARE) for causal in (True, False))
    assert causal.seconds["compute_last"] == pytest.approx(full.seconds["compute_last"])
    assert causal.features["keys"] == full.features["keys"] == 2048


def test_backward_tiles_the_keys():
    terms = attention.backward_terms(shapes(queries=256, keys=1000, backward=True), HARDWARE)
    assert terms.features["waves"] == pytest.approx(64 * 8 / 100)
    assert terms.seconds["compute"] == pytest.approx(10 * 64 * 1024 * 256 * 64 / 1e15)


@pytest.mark.parametrize(("heads", "kv_heads", "tasks"), [(8, 8, 8), (32, 8, 8), (32, 1, 2), (96, 2, 6), (128, 1, 8)])
def test_decoding_runs_heads_that_share_keys_together(heads, kv_heads, tasks):
    terms = attention_decode.terms(shapes(batch=1, heads=heads, kv_heads=kv_heads, queries=1, keys=4096), HARDWARE)
    task_s = terms.seconds["compute_tasks"] + terms.seconds["compute_grouped_tasks"]
    assert task_s == pytest.approx(tasks / 100 * 1e-6)
    moved = 2 * 2 * 64 * (kv_heads * 4096 + heads)
    assert terms.seconds["memory"] == pytest.approx(moved / 1e12)


@pytest.mark.parametrize("chip", ["h100-80gb-sxm", "h200-141gb-sxm", "l40s", "b300-288gb-sxm"])
def test_decoding_reads_keys_once_however_many_query_heads_share_them(chip):
    """A sequence of 65,536 keys of 8 heads: memory decides, so twelve times the query heads take little longer."""
    sizes = {"batch": 16, "kv_heads": 8, "queries": 1, "keys": 65536, "head": 128}
    few, many = (time_s(chip, "attention_decode", heads=heads, **sizes) for heads in (64, 768))
    assert few <= many < 1.6 * few
    read_s = 2 * 2 * 16 * 8 * 65536 * 128 / CATALOG.chip(chip).memory_bandwidth_bytes_per_s
    assert read_s < few < 1.5 * read_s


@pytest.mark.parametrize("chip", ["t4", "l4", "rtx-4090", "h100-80gb-sxm", "a100-80gb-sxm", "mi300x"])
@pytest.mark.parametrize("numerics", ["fp32", "fp16"])
def test_decoding_reads_no_faster_than_the_memory_what_no_cache_holds(chip, numerics):
    """76 sequences of 2,436 cached tokens, one layer of GPT-2. Of other attentions' figures none fits decoding."""
    element = {"fp32": 4, "fp16": 2}[numerics]
    chip = CATALOG.chip(chip)
    priced = time_s(chip, "attention_decode", numerics, batch=76, heads=12, queries=1, keys=2436, head=64)
    bytes_read = 2 * 76 * 12 * 2436 * 64 * element - 2 * (chip.l2_bytes or 0)
    assert priced > bytes_read / chip.memory_bandwidth_bytes_per_s


def test_classes_tell_kernels_apart():
    flash = "aten._scaled_dot_product_flash_attention.default"
    assert class_of("attention", flash) == "attention"
    assert class_of("attention", flash, decode=True) == "attention_decode"
    assert (
        class_of("attention", "aten._scaled_dot_product_efficient_attention_backward.default") == "attention_efficient_backward"
    )
    assert class_of("attention", "aten._scaled_dot_product_cudnn_attention.default") == "attention_cudnn"
    queries, keys = np.array([1, 1, 8, 9, 2048]), np.array([4096, 8, 128, 4096, 2048])
    assert attention_decode.is_decode(queries, keys).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    "kernel_class",
    [
        "attention",
        "attention_backward",
        "attention_engine",
        "attention_encoder",
        "attention_efficient",
        "attention_cudnn_backward",
        "attention_decode",
    ],
)
@pytest.mark.parametrize("chip", ["h100-80gb-sxm", "a100-40gb-pcie", "rtx-4090", "b200-180gb-sxm"])
@settings(deadline=None, max_examples=15)
@given(
    st.integers(1, 64),
    st.sampled_from([1, 2, 8, 32]),
    st.integers(1, 9000),
    st.sampled_from([64, 80, 128, 256]),
    st.booleans(),
    st.integers(2, 5),
)
def test_more_samples_or_a_longer_sequence_never_take_less_time(
    chip, kernel_class, batch, groups, length, head, causal, factor
):
    decode = kernel_class == "attention_decode"
    sizes = {"batch": batch, "heads": 32, "kv_heads": 32 // groups, "head": head, "causal": causal and not decode}
    once = {"queries": 1, "keys": length} if decode else {"queries": length}
    longer = {"queries": 1, "keys": length * factor} if decode else {"queries": length * factor}
    usual = time_s(chip, kernel_class, **sizes, **once)
    assert time_s(chip, kernel_class, **{**sizes, "batch": batch * factor}, **once) >= usual * (1 - 1e-9)
    assert time_s(chip, kernel_class, **sizes, **longer) >= usual * (1 - 1e-9)


def test_published_speeds_of_the_kernels_pytorch_runs():
    """FlashAttention-2 on H100, 16,384 tokens, 16 heads of 128: 370 TFLOP/s, 322 backward (arXiv:2407.08608, figures 5, 6)."""
    flops = 4 * 16 * 16384**2 * 128
    sizes = {"batch": 1, "heads": 16, "queries": 16384, "head": 128}
    assert flops / time_s("h100-80gb-sxm", **sizes) == pytest.approx(370e12, rel=0.15)
    assert 2.5 * flops / time_s("h100-80gb-sxm", "attention_backward", **sizes) == pytest.approx(322e12, rel=0.15)
    # The engines' kernel and cuDNN's are 1.6 to 1.8 times as fast there, the memory-efficient one 2.6 times slower.
    assert time_s("h100-80gb-sxm", "attention_engine", **sizes) < 0.75 * time_s("h100-80gb-sxm", **sizes)
    assert time_s("h100-80gb-sxm", "attention_cudnn", **sizes) < 0.75 * time_s("h100-80gb-sxm", **sizes)
    assert time_s("h100-80gb-sxm", "attention_efficient", **sizes) > 2 * time_s("h100-80gb-sxm", **sizes)


def test_volta_has_the_memory_efficient_kernel_only():
    """29 TFLOP/s forward, 19 backward on V100 (source in benchmarks.fit.attention)."""
    sizes = {"batch": 4, "heads": 12, "queries": 2048, "head": 64, "causal": True, "numerics": "fp16"}
    flops = 4 * 48 * 2048**2 * 64 / 2
    assert flops / time_s("v100-sxm2-32gb", "attention_efficient", **sizes) == pytest.approx(29e12, rel=0.2)
    backward = time_s("v100-sxm2-32gb", "attention_efficient_backward", **sizes)
    assert 2.5 * flops / backward == pytest.approx(19e12, rel=0.2)
