"""One kernel by its sizes: what it does, how long it takes, and what is refused."""

from __future__ import annotations

import contextlib

import pytest

import gpuwise
from gpuwise.cost.calibration import PROVENANCE, calibration
from gpuwise.cost.single_kernel import kernel_forecast
from gpuwise.errors import InputError, UnknownNameError, UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.trace.presets import load_preset
from gpuwise.trace.tables import KINDS

H100 = load_catalog().chip("h100-80gb-sxm")
IMAGE = {"batch": 8, "in_channels": 64, "out_channels": 128, "height": 56, "width": 56, "kernel_size": 3}


def test_a_product_has_its_flops_its_bytes_and_its_interval():
    result = gpuwise.kernel("gemm", on="h100-sxm", dtype="bf16", m=4096, n=1024, k=512)
    assert result.kernel == "gemm.bf16"
    assert result.flops == 2 * 4096 * 1024 * 512
    assert result.bytes == 2 * (4096 * 512 + 512 * 1024 + 4096 * 1024)
    assert result.time_s.low < result.time_s.value < result.time_s.high
    spread = calibration(H100).find("gemm", "bf16").entry.spread
    assert result.time_s.low / result.time_s.value == pytest.approx(spread[0])
    assert sum(result.bound.values()) == pytest.approx(1)
    assert result.provenance in PROVENANCE.values()
    assert result.to_dict()["time_s"]["value"] == result.time_s.value
    assert gpuwise.kernel("gemm", on="h100-sxm", dtype="bfloat16", m=4096, n=1024, k=512) == result


def bound_of_product(chip, m):
    bound = gpuwise.kernel("gemm", on=chip, dtype="fp16", m=m, n=8192, k=8192).bound
    return max(bound, key=bound.get)


def test_large_products_are_bound_by_arithmetic():
    """On every GPU: 8192 cubed has 2,700 operations a byte."""
    bounds = {}
    for chip in load_catalog().chips.values():
        if chip.kind.startswith("gpu"):
            with contextlib.suppress(UnsupportedError):
                bounds[chip.id] = bound_of_product(chip.id, 8192)
    assert len(bounds) > 50
    assert set(bounds.values()) == {"compute"}, bounds


@pytest.mark.parametrize("chip", ["v100-sxm2-32gb", "a100-80gb-sxm", "rtx-4090", "h100-80gb-sxm", "b200-180gb-sxm"])
def test_products_of_one_row_are_bound_by_memory(chip):
    assert bound_of_product(chip, 1) == "memory"


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16", "fp8", "int8"])
def test_no_product_is_faster_than_its_units_at_the_highest_clock(dtype):
    """The datasheet's rate; 15 % more on GeForce boards, which says so. Both ends of the interval."""
    for chip in load_catalog().chips.values():
        for side in (2048, 8192):
            try:
                result = gpuwise.kernel("gemm", on=chip.id, dtype=dtype, m=side, n=side, k=side)
            except UnsupportedError:
                continue
            geforce = chip.vendor == "NVIDIA" and chip.kind == "gpu-consumer"
            assert result.highest_flops_per_s == pytest.approx(result.peak_flops_per_s * (1.15 if geforce else 1))
            assert result.flops / result.time_s.low <= result.highest_flops_per_s * 1.0001
            if result.flops / result.time_s.value > result.peak_flops_per_s * 1.0001:
                assert geforce, chip.id
                assert "GeForce boards" in result.beyond
            if dtype in ("bf16", "fp8", "int8") and chip.kind != "cpu":  # others may take units of another precision
                assert result.peak_flops_per_s == pytest.approx(chip.peak_flops_per_s[dtype]), chip.id


def test_a_product_that_is_faster_than_the_datasheet_says_why():
    result = gpuwise.kernel("gemm", on="rtx-4090", m=8192, n=8192, k=8192)
    assert result.flops / result.time_s.value > result.peak_flops_per_s == 165.2e12
    assert result.beyond.startswith("GeForce boards run beyond their datasheet's 2,520 MHz")
    small = gpuwise.kernel("elementwise", on="rtx-4090", bytes_read=10**7, bytes_written=10**7)
    assert small.bytes / small.time_s.value > 1008e9
    assert small.beyond == "part of the bytes stays in the 72 MiB cache"
    large = gpuwise.kernel("elementwise", on="rtx-4090", bytes_read=2**31, bytes_written=2**31)
    assert large.time_s.low >= (large.bytes - 2 * 72 * 2**20) / 1008e9  # the cache has the first 72 MiB and keeps the last
    assert gpuwise.kernel("gemm", on="h100-sxm", m=8192, n=8192, k=8192).beyond == ""


def test_quantized_products_are_written_in_16_bits():
    eight = gpuwise.kernel("gemm", on="h100-sxm", dtype="fp8", m=64, n=64, k=64)
    assert eight.bytes == 2 * 64 * 64 + 2 * 64 * 64


def test_several_products_and_groups_are_classes_of_their_own():
    def name(kind, **sizes):
        return gpuwise.kernel(kind, on="h100-sxm", dtype="fp16", **sizes).kernel

    assert name("gemm", m=64, n=64, k=64, batch=8) == "gemm_batched.fp16"
    assert name("conv", **IMAGE) == "conv.fp16"
    assert name("conv", **IMAGE, groups=4) == "conv_grouped.fp16"
    assert name("conv", **{**IMAGE, "out_channels": 64}, groups=64) == "conv_depthwise.fp16"
    assert name("conv_backward", **IMAGE, groups=4) == "conv_grouped_backward.fp16"
    assert name("conv_channels_last", **IMAGE, groups=4) == "conv_grouped_channels_last.fp16"


def test_a_convolution_is_an_implicit_product():
    result = gpuwise.kernel("conv", on="h100-sxm", dtype="fp16", **IMAGE)
    assert result.flops == 2 * 8 * 56 * 56 * 128 * 64 * 9
    assert result.bytes == 2 * (8 * 64 * 56**2 + 128 * 64 * 9 + 8 * 128 * 56**2)
    halved = gpuwise.kernel("conv", on="h100-sxm", dtype="fp16", **IMAGE, stride=2)
    assert halved.flops == result.flops / 4
    assert gpuwise.kernel("conv_backward", on="h100-sxm", dtype="fp16", **IMAGE).flops == 2 * result.flops


def test_attention_counts_heads_keys_and_the_mask():
    sizes = {"batch": 2, "heads": 32, "queries": 1024, "head_size": 128}
    full = gpuwise.kernel("attention", on="h100-sxm", **sizes)
    assert full.flops == 4 * 2 * 32 * 1024 * 1024 * 128
    assert full.bytes == 2 * 4 * 2 * 32 * 1024 * 128
    causal = gpuwise.kernel("attention", on="h100-sxm", **sizes, causal=True)
    assert causal.flops == pytest.approx(full.flops / 2, rel=0.002)
    grouped = gpuwise.kernel("attention", on="h100-sxm", **sizes, kv_heads=8)
    assert grouped.bytes == full.bytes * (2 + 2 / 4) / 4
    backward = gpuwise.kernel("attention_backward", on="h100-sxm", **sizes)
    assert backward.flops == 2.5 * full.flops
    one = {**sizes, "queries": 1, "keys": 8192}
    assert gpuwise.kernel("attention", on="h100-sxm", **one, causal=True) == gpuwise.kernel("attention", on="h100-sxm", **one)


def test_sizes_describe_the_same_operation_as_a_trace():
    """The products of a recorded step: equal numbers by both ways."""
    operations = load_preset("gpt2", precision="amp-bf16").at(micro_batch=2).operations
    seen = 0
    for row in range(len(operations)):
        if operations.name[row] != "aten.mm.default":
            continue
        m, n, k = (int(operations.column(name)[row]) for name in "mnk")
        result = kernel_forecast("gemm", H100, dtype=operations.dtype[row], sizes={"m": m, "n": n, "k": k})
        assert result.flops == operations.column("flops")[row]
        assert result.bytes == operations.column("bytes_read")[row] + operations.column("bytes_written")[row]
        seen += 1
    assert seen > 4


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("gemm", "conv", "attention", "rnn")])
def test_every_other_kind_is_described_by_its_bytes(kind):
    result = gpuwise.kernel(kind, on="rtx-4090", dtype="fp32", bytes_read=10**10, bytes_written=10**10)
    assert result.flops == 0
    assert result.bytes == 2 * 10**10
    assert result.time_s.value > (2e10 - 2 * 75.5e6) / 1.008e12  # but what the cache holds before and after


@pytest.mark.parametrize(
    ("kind", "sizes", "named"),
    [
        ("gemm", {"m": 1, "n": 1}, "'k'"),
        ("gemm", {"m": 1, "n": 1, "k": 1, "depth": 3}, "'depth'"),
        ("gemm", {"m": 0, "n": 1, "k": 1}, "m of a kernel"),
        ("gemm", {"m": 1.5, "n": 1, "k": 1}, "m of a kernel"),
        ("gemm", {"m": 2**60, "n": 1, "k": 1}, "m of a kernel"),
        ("conv", {**IMAGE, "groups": 5}, "do not divide"),
        ("conv", {**IMAGE, "kernel_size": 99, "padding": 0}, "does not fit"),
        ("attention", {"batch": 1, "heads": 8, "kv_heads": 3, "queries": 8, "head_size": 64}, "do not divide"),
        ("softmax", {"bytes_read": -1, "bytes_written": 1}, "bytes_read"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(kind, sizes, named):
    with pytest.raises(InputError, match=named):
        gpuwise.kernel(kind, on="rtx-4090", dtype="fp16", **sizes)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="gem"):
        gpuwise.kernel("gem", on="rtx-4090", m=1, n=1, k=1)
    with pytest.raises(UnknownNameError, match="fp9"):
        gpuwise.kernel("gemm", on="rtx-4090", dtype="fp9", m=1, n=1, k=1)
    with pytest.raises(UnknownNameError, match="rtx-9999"):
        gpuwise.kernel("gemm", on="rtx-9999", m=1, n=1, k=1)


def test_a_dtype_that_the_chip_lacks_is_refused_with_the_nearest_it_has():
    with pytest.raises(UnsupportedError, match="fp8") as caught:
        gpuwise.kernel("gemm", on="a100-80gb-sxm", dtype="fp8", m=64, n=64, k=64)
    assert "bf16" in caught.value.ways_out[0]
    with pytest.raises(UnsupportedError, match="too old"):
        gpuwise.kernel("gemm", on="k80-die", dtype="fp32", m=64, n=64, k=64)
    with pytest.raises(UnsupportedError, match="no known"):
        gpuwise.kernel("gemm", on="intel-loihi2", dtype="fp32", m=64, n=64, k=64)
