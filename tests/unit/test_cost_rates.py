"""Which units compute quantized numbers, and what is said where a chip has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import QUANTIZED, Units, precisions_of, units_for
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import load_catalog

CATALOG = load_catalog()


def units(chip: str, dtype: str) -> Units:
    return units_for(CATALOG.chip(chip), dtype=dtype, kind="gemm", precision="fp32", parameters=parameters())


@pytest.mark.parametrize(
    ("chip", "dtype", "rate", "figure"),
    [
        ("b200-180gb-sxm", "float4_e2m1fn_x2", "tensor", "fp4"),
        ("h100-80gb-sxm", "float8_e5m2", "tensor", "fp8"),
        ("mi300x", "float8_e4m3fnuz", "tensor", "fp8"),
        ("rtx-3090", "int8", "tensor", "int8"),
        ("t4", "uint8", "tensor", "int8"),
        ("v100-sxm2-16gb", "int8", "vector", "int8"),  # dp4a: no int8 in Volta's tensor cores
        ("tpu-v5e", "int8", "systolic", "int8"),
        ("tpu-v6e", "float8_e4m3fn", "systolic", "fp8"),
        ("gaudi2", "float8_e4m3fn", "systolic", "fp8"),
    ],
)
def test_quantized_products_run_at_the_rate_of_their_own_units(chip: str, dtype: str, rate: str, figure: str) -> None:
    result = units(chip, dtype)
    assert (result.rate, result.figure, result.note) == (rate, figure, None)
    assert result.peak_flops_per_s == CATALOG.chip(chip).peak_flops_per_s[figure]


@pytest.mark.parametrize(
    ("chip", "dtype", "name", "nearest"),
    [
        ("h100-80gb-sxm", "float4_e2m1fn_x2", "fp4", "fp8"),
        ("rtx-3090", "float4_e2m1fn_x2", "fp4", "bf16"),
        ("rtx-3090", "float8_e4m3fn", "fp8", "bf16"),
        ("t4", "float8_e4m3fn", "fp8", "fp16"),
        ("gtx-1080", "float8_e4m3fn", "fp8", "fp32"),  # whose fp16 is slower than its fp32
        ("tpu-v7", "int8", "int8", "fp8"),
        ("tpu-v4", "float64", "fp64", "bf16"),
        ("apple-m2", "float64", "fp64", "fp32"),
    ],
)
def test_a_type_without_units_is_refused_with_the_nearest_the_chip_has(chip: str, dtype: str, name: str, nearest: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{chip} has no {name} peak rate") as refusal:
        units(chip, dtype)
    assert refusal.value.ways_out[0] == f"hold the numbers in {nearest}, the nearest it has"
    assert len(refusal.value.ways_out) <= 2


def test_a_cpu_of_unknown_int8_rate_multiplies_integers_at_its_fp32_rate_and_says_so() -> None:
    chip = CATALOG.chip("xeon-8380")
    result = units("xeon-8380", "int8")
    assert (result.peak_flops_per_s, result.figure) == (chip.peak_flops_per_s["fp32"], "fp32")
    assert "int8" in result.note.text
    known = replace(chip, peak_flops_per_s={**chip.peak_flops_per_s, "int8": 4e13})
    assert units_for(known, dtype="int8", kind="gemm", precision="fp32", parameters=parameters()) == Units("cpu", 4e13, "int8")


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_every_chip_answers_or_refuses(dtype: str) -> None:
    for chip in CATALOG.chips.values():
        try:
            result = units(chip.id, dtype)
        except UnsupportedError:
            assert not chip.peak_flops_per_s.get(QUANTIZED[dtype])
        else:
            assert result.peak_flops_per_s > 0


def test_fp8_is_a_precision_of_gpus_and_of_tpus_that_have_it() -> None:
    able = {name for name in CATALOG.chips if "fp8" in precisions_of(CATALOG.chip(name))}
    assert {"h100-80gb-sxm", "rtx-4090", "mi300x", "tpu-v6e", "gaudi2"} <= able
    assert not able & {"a100-80gb-sxm", "t4", "tpu-v4", "xeon-8480plus"}
