"""Energy of serving: work counted token by token, and its limits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.one_recording import one_recording  # noqa: F401
from tests.unit.test_api_serving import job

from gpuwise.api.serving import serve_plan
from gpuwise.cost.parameters import parameters
from gpuwise.cost.power import ENERGY_SPREAD, share_of_tdp
from gpuwise.hardware.catalog import load_catalog
from gpuwise.serving.continuous import serve
from gpuwise.serving.energy import LoadWork, computed_in, energy_spread, energy_use, work_of
from gpuwise.serving.formats import StoredWeights
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.tracing.generation import record_generation

POLICY = BatchingPolicy(batched_tokens=512, sequences=8, cache_tokens=100_000)

SETTINGS = {"precision": "bf16", "rate_per_s": 1.0, "iterations": (0.8, 1.25), "parameters": parameters()}


def iteration_s(chunks, sequences, past_tokens):
    return 0.01


LOAD = requests(np.zeros(2), np.full(2, 5), np.full(2, 5))


def test_work_is_that_of_each_token():
    generation = record_generation(job(), longest=4096)
    rng = np.random.default_rng(0)
    load = requests(np.sort(rng.uniform(0, 5, 40)), rng.integers(1, 300, 40), rng.integers(1, 50, 40), cached_share=0.25)
    served = serve(load, iteration_s, POLICY)
    for window in (None, 64):
        layers = tuple(replace(each, window=window) for each in generation.attention)
        windowed = replace(generation, attention=layers)
        work = work_of(served, windowed, StoredWeights(1_000_000))
        keys = seen = tokens = 0
        for read, written, cached in zip(load.input_tokens, load.output_tokens, load.cached_tokens, strict=True):
            tokens += read - cached + written - 1
            seen += sum(min(i, window or i) for i in range(cached + 1, read + written))
            keys += sum(min(i, window or i) for i in range(read + 1, read + written))
        (layer,) = layers
        assert work.bytes_read == pytest.approx(served.iterations * 1_000_000 + layer.layers * layer.key_bytes * keys)
        # 4 blocks of 512 x (8 + 2 + 2 + 8) x 64 + 3 x 512 x 1408 weights, and a head of 8192 x 512
        products = 4 * (512 * 20 * 64 + 3 * 512 * 1408)
        expected = 2 * products * tokens + 2 * 8192 * 512 * load.output_tokens.sum() + 4 * 4 * 512 * seen
        assert work.flops == pytest.approx(expected, rel=0.01)


def test_energy_of_a_load():
    chip, figures = load_catalog().chip("h100-80gb-sxm"), parameters()
    load = requests(np.arange(100.0), np.full(100, 50), np.full(100, 10))
    served = serve(load, iteration_s, POLICY)
    work = LoadWork(
        0.1 * served.busy_s * chip.peak_flops_per_s["bf16"], 0.4 * served.busy_s * chip.memory_bandwidth_bytes_per_s
    )
    use = energy_use(chip, served, work, devices=2, **SETTINGS)
    assert (use.arithmetic, use.bandwidth) == (pytest.approx(0.1), pytest.approx(0.4))
    share = use.utilisation * share_of_tdp(0.1, 0.4, figures.power) + (1 - use.utilisation) * figures.power["waiting"]
    assert use.watts.value == pytest.approx(share * chip.tdp_w)
    assert use.joules_per_request.value == pytest.approx(2 * use.watts.value)
    assert use.joules_per_token.value == pytest.approx(2 * use.watts.value / 10)
    assert use.watts.low == pytest.approx(ENERGY_SPREAD[0] * use.watts.value)
    low, high = energy_spread((0.8, 1.25))
    assert use.joules_per_token.low == pytest.approx(low * use.joules_per_token.value)
    assert use.joules_per_token.high == pytest.approx(high * use.joules_per_token.value)
    assert energy_spread((1.0, 1.0)) == pytest.approx(ENERGY_SPREAD)
    assert low == pytest.approx(np.exp(-np.sqrt(np.log(ENERGY_SPREAD[0]) ** 2 + np.log(0.8) ** 2)))
    assert use.watts.high <= chip.tdp_w
    for unknown in (replace(chip, tdp_w=None), replace(chip, kind="cpu")):
        assert energy_use(unknown, served, work, devices=1, **SETTINGS) is None


def test_products_of_narrow_weights_have_the_peak_of_their_type():
    """Where the chip has units for it; elsewhere they compute in 16 bits."""
    work, served = LoadWork(1e15, 1e12), SimpleNamespace(busy_s=10.0, utilisation=1.0, requests=LOAD)
    for chip_id, kind, peak in (
        ("h100-80gb-sxm", "float8_e4m3fn", "fp8"),
        ("h100-80gb-sxm", "int8", "int8"),
        ("h100-80gb-sxm", "float4_e2m1fn_x2", "bf16"),
        ("b200-180gb-sxm", "float4_e2m1fn_x2", "fp4"),
        ("a100-80gb-sxm", "float8_e4m3fn", "bf16"),
        ("a100-80gb-sxm", "", "bf16"),
    ):
        chip = load_catalog().chip(chip_id)
        precision = computed_in(chip, StoredWeights(1, arithmetic=kind), "bf16")
        assert precision == peak
        use = energy_use(chip, served, work, devices=1, **{**SETTINGS, "precision": precision})
        assert use.arithmetic == pytest.approx(1e15 / 10 / chip.peak_flops_per_s[peak])


def test_fp8_draws_no_more_than_bf16_for_the_same_work():
    watts = [serve_plan(job(), on="h100-sxm", rate="60/s", weights=kind).rows[0].energy for kind in ("fp8", None)]
    assert watts[0].arithmetic < watts[1].arithmetic
    assert watts[0].joules_per_token.value < watts[1].joules_per_token.value


@pytest.mark.slow
def test_an_idle_instance_takes_more_energy_a_token():
    idle, busy = (serve_plan(job(), on="l4", rate=rate).rows[0].energy for rate in ("0.5/s", "60/s"))
    assert idle.joules_per_token.value > busy.joules_per_token.value
    assert idle.watts.value < busy.watts.value
    assert idle.watts.value == pytest.approx(parameters().power["waiting"] * load_catalog().chip("l4").tdp_w, rel=0.1)
