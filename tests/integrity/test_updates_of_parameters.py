"""Updates of parameters on GPUs: at the bandwidth of elementwise kernels in every calibration file, and in whole forecasts."""

from __future__ import annotations

import pytest

import gpuwise
from gpuwise.cost.calibration import names_of, shipped
from gpuwise.cost.rates import family
from gpuwise.hardware.catalog import load_catalog


def test_optimizers_follow_elementwise_kernels_in_every_file() -> None:
    of_gpus = {of for chip in load_catalog().chips.values() if family(chip) == "gpu" for of in names_of(chip).values()}
    gpus = [
        file
        for file in shipped().values()
        if file.of in of_gpus and {"elementwise", "optimizer"} & {*file.entries, *file.scale}
    ]
    assert len(gpus) > 40
    for file in gpus:
        assert file.scale.get("optimizer") == file.scale.get("elementwise"), file.name
        if "elementwise" in file.entries:
            like, own = file.entries["elementwise"].terms["memory"], file.entries["optimizer"].terms["memory"]
            assert own.scale == pytest.approx(1.1 * like.scale, rel=1e-3), file.name
            assert own.curves == like.curves, file.name


GPUS = [
    chip.id
    for chip in load_catalog().chips.values()
    if family(chip) == "gpu" and chip.vendor == "NVIDIA" and (chip.memory_bytes or 0) >= 40 * 2**30
]


@pytest.mark.parametrize("on", GPUS)
def test_a_fused_update_takes_little_longer_than_its_bytes(on: str) -> None:
    """28 bytes a parameter: AdamW reads parameter, gradient and two moments, and writes three of them."""
    chip = load_catalog().chips[on]
    assert chip.memory_bandwidth_bytes_per_s is not None
    least_s = 28 * 1_557_611_200 / chip.memory_bandwidth_bytes_per_s
    # Long enough that nothing waits for the host.
    forecast = gpuwise.forecast("gpt2-xl", on=f"{on}:1", micro_batch=8, precision="fp32", optimizer_kernels="fused")
    assert least_s <= forecast.breakdown["optimizer"] <= 1.7 * least_s
