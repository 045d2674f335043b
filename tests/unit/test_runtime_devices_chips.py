"""Accelerators as PyTorch sees them, of makers whose hardware is not here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gpuwise.hardware import Catalog, Cpu
from gpuwise.runtime.devices import chips

CATALOG = Catalog()
GIB = 2**30


def seen(monkeypatch: pytest.MonkeyPatch, backend: object, *found: SimpleNamespace) -> None:
    monkeypatch.setattr(backend, "is_available", lambda: bool(found))
    monkeypatch.setattr(backend, "device_count", lambda: len(found))
    monkeypatch.setattr(backend, "get_device_properties", lambda place: found[place])


@pytest.fixture(autouse=True)
def _nothing_here(monkeypatch: pytest.MonkeyPatch):
    seen(monkeypatch, torch.cuda)
    seen(monkeypatch, torch.xpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_none():
    assert chips.accelerators(CATALOG) == ()


def test_nvidia(monkeypatch: pytest.MonkeyPatch):
    seen(monkeypatch, torch.cuda, SimpleNamespace(name="NVIDIA L4", total_memory=22.0 * GIB, major=8, minor=9))
    monkeypatch.setattr(torch.version, "hip", None)
    (result,) = chips.accelerators(CATALOG)
    assert (result.device, result.chip.id, result.gpu.compute_capability, result.in_catalog) == ("cuda:0", "l4", (8, 9), True)


def test_amd_speaks_through_torch_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    known = SimpleNamespace(name="AMD Instinct MI300X", total_memory=int(191.98 * GIB), major=9, minor=4)
    other = SimpleNamespace(name="AMD Radeon Graphics", total_memory=8 * GIB, major=11, minor=0)
    seen(monkeypatch, torch.cuda, known, other)
    one, two = chips.accelerators(CATALOG)
    assert (one.device, one.chip.id, one.gpu.vendor, one.gpu.compute_capability) == ("cuda:0", "mi300x", "AMD", None)
    assert (two.device, two.chip.id, two.chip.name, two.in_catalog) == ("cuda:1", "here-gpu", "AMD Radeon Graphics", False)
    assert two.chip.peak_flops_per_s == {}


def test_intel(monkeypatch: pytest.MonkeyPatch):
    stack = SimpleNamespace(name="Intel(R) Data Center GPU Max 1550", total_memory=64 * GIB)
    seen(monkeypatch, torch.xpu, stack, stack)
    one, two = chips.accelerators(CATALOG)
    assert (one.device, one.chip.id) == ("xpu:0", "intel-max-1550")
    assert (two.device, two.chip) == ("xpu:1", one.chip)


def test_amds_module_of_two_dies_is_two_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    die = SimpleNamespace(
        name="AMD Instinct MI250X / MI250", total_memory=int(63.98 * GIB), major=9, minor=0, multi_processor_count=110
    )
    seen(monkeypatch, torch.cuda, die, die)
    result = chips.accelerators(CATALOG)
    assert [(one.device, one.chip.id) for one in result] == [("cuda:0", "mi250x"), ("cuda:1", "mi250x")]
    assert result[0].chip.memory_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("cores", "gib", "chip_id", "sheet"),
    [
        (38, 96, "apple-m2-max", "apple-m2-max"),
        (30, 32, "here-gpu", "apple-m2-max-30-core"),
        (20, 32, "here-gpu", "apple-m2-max"),
    ],
)
def test_apple_with_the_memory_and_cores_that_are_here(
    monkeypatch: pytest.MonkeyPatch, cores: int, gib: int, chip_id: str, sheet: str
):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: cores, raising=False)
    monkeypatch.setattr(chips, "detect_cpu", lambda: Cpu("Apple M2 Max", "Apple", 12, 12, memory_bytes=gib * GIB))
    (result,) = chips.accelerators(CATALOG)
    whole = CATALOG.chips[sheet]
    assert (result.device, result.chip.id, result.chip.sm_count, result.chip.memory_bytes) == ("mps", chip_id, cores, gib * GIB)
    for precision, rate in whole.peak_flops_per_s.items():
        assert result.chip.peak_flops_per_s[precision] == pytest.approx(rate * cores / whole.sm_count)


def test_a_driver_that_fails_is_no_device(monkeypatch: pytest.MonkeyPatch):
    def fail(place: int):
        raise RuntimeError("CUDA driver version is insufficient")

    seen(monkeypatch, torch.cuda, SimpleNamespace(name="NVIDIA L4"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert chips.accelerators(CATALOG) == ()
