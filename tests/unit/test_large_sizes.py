"""Models larger than any device: forecasts count them exactly, up to what 64 bits hold, and say where that ends."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gpuwise
from gpuwise.units import format_bytes


def job(inputs: int, outputs: int) -> gpuwise.Job:
    return gpuwise.Job(
        model=lambda: nn.Linear(inputs, outputs),
        batch=lambda n: torch.randn(n, inputs),
        loss=lambda model, batch: model(batch).square().mean(),
        name="large",
    )


@pytest.mark.parametrize(("inputs", "outputs"), [(10**4, 10**5), (10**6, 10**7), (10**7, 10**8)])
def test_a_linear_layer_of_any_size_is_forecast(inputs: int, outputs: int) -> None:
    forecast = gpuwise.forecast(job(inputs, outputs), on="h100-sxm", micro_batch=1)
    unsplit_bytes = 4 * 2**20  # the allocator leaves up to 1 MiB of a block unused
    parameter_bytes = 4 * inputs * outputs + 4 * outputs
    assert forecast.memory.by_category["parameter"] == pytest.approx(parameter_bytes, abs=unsplit_bytes)
    # AdamW keeps two numbers a parameter.
    assert forecast.memory.by_category["optimizer_state"] == pytest.approx(2 * parameter_bytes, abs=unsplit_bytes)
    assert forecast.memory.peak_allocated_bytes >= 4 * parameter_bytes
    assert forecast.memory.fits is (inputs == 10**4)
    assert forecast.flops_per_step >= 4 * inputs * outputs


def test_fit_of_a_layer_that_no_device_holds_is_an_answer() -> None:
    result = gpuwise.fit(job(10**6, 10**7), on="h100-sxm")
    assert result.largest_micro_batch is None
    assert not result.fits


@pytest.mark.parametrize("outputs", [10**8, 10**9, 10**11])
def test_more_than_64_bits_hold_is_refused_and_never_negative(outputs: int) -> None:
    with pytest.raises(gpuwise.GpuwiseError, match="bytes or operations"):
        gpuwise.forecast(job(10**9, outputs), on="h100-sxm", micro_batch=4096)


def test_bytes_have_units_up_to_where_int64_ends() -> None:
    assert format_bytes(2**40 * 164) == "164 TiB"
    assert format_bytes(2**50 * 16) == "16 PiB"
    assert format_bytes(2**63) == "8 EiB"
