"""A forward pass unasked: weights in 16 bits where the chip computes in them, and what it is not said beside it."""

from __future__ import annotations

import pytest

import gpuwise

pytest.importorskip("torch")


@pytest.mark.parametrize(("device", "precision"), [("h100-sxm", "bf16"), ("l4", "bf16"), ("t4", "amp-fp16")])
def test_weights_are_in_16_bits_on_chips_that_have_them(device: str, precision: str):
    forecast = gpuwise.forecast("gpt2", on=device, mode="infer")
    assert forecast.strategy.precision == precision
    parameters = 124_439_808  # of GPT-2 small, as published
    each_bytes = 2 if precision == "bf16" else 4
    assert forecast.memory.by_category["parameter"] == pytest.approx(each_bytes * parameters, rel=0.05)


def test_training_keeps_its_weights_in_32_bits():
    assert gpuwise.forecast("gpt2", on="h100-sxm").strategy.precision == "amp-bf16"


def test_an_asked_precision_is_kept():
    assert gpuwise.forecast("gpt2", on="h100-sxm", mode="infer", precision="fp32").strategy.precision == "fp32"


@pytest.mark.parametrize("verb", [gpuwise.forecast, gpuwise.fit])
def test_no_optimizer_is_assumed_and_what_is_not_covered_is_said(verb):
    result = verb("gpt2", on="h100-sxm", mode="infer")
    assert not any("optimizer" in line for line in result.assumptions)
    assert any("no cache of keys and values" in line for line in result.assumptions)
    training = verb("gpt2", on="h100-sxm")
    assert any("optimizer" in line for line in training.assumptions)
    assert not any("no cache of keys and values" in line for line in training.assumptions)
