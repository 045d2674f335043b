"""The reasons of a comparison are about the devices compared."""

from __future__ import annotations

import pytest

import gpuwise


@pytest.mark.parametrize(
    ("job", "on"),
    [("gpt2", "t4,rtx-4090,h100-sxm"), ("resnet50", "rtx-4090,h100-sxm:8,m1-max"), ("tabular-mlp", "t4,l4,h100-sxm")],
)
def test_each_reason_names_the_baseline_it_is_against(job: str, on: str):
    comparison = gpuwise.compare(job, on=on)
    chips = [row.device.partition(":")[0] for row in comparison.rows]
    baseline = comparison.baseline.partition(":")[0]
    for row in comparison.rows:
        assert "the slower" not in row.reason
        assert "0% of a step" not in row.reason
        if row.device != comparison.baseline:
            assert baseline in row.reason
            assert not [chip for chip in gpuwise.Catalog().chips if f" {chip} " in row.reason and chip not in chips]


def test_what_holds_for_some_devices_names_them():
    """The link of one device, or a figure of it that is unverified, says nothing of the others."""
    lines = gpuwise.compare("resnet50", on="t4,h100-sxm,m1-max").assumptions
    links = [line for line in lines if "PCIe" in line]
    assert links
    assert all(line.startswith(("t4: ", "h100-80gb-sxm: ", "t4, ")) for line in links)
    assert any(line.startswith("assumed images of 224x224") for line in lines)
