"""GPUs that PyTorch tells of: when it is asked, what is made of its answer, and what `here` is then."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpuwise.api import run_start
from gpuwise.api.run_start import Here, this_device
from gpuwise.api.trial import torch_device
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import Catalog, Cpu, Gpu, detect_machine, load_catalog, parse_device
from gpuwise.hardware.detect import machine as machine_module
from gpuwise.hardware.detect import machine_of, pytorch
from gpuwise.runtime.devices import chips
from gpuwise.runtime.devices import here as here_module

CATALOG = Catalog()
GIB = 2**30
MI300X = Gpu("AMD Instinct MI300X", int(191.98 * GIB), "AMD", multiprocessors=304)
M2_MAX = Gpu("Apple M2 Max", 32 * GIB, "Apple", multiprocessors=30)
MAX_1550 = Gpu("Intel(R) Data Center GPU Max 1550", 64 * GIB, "Intel")


@pytest.fixture(autouse=True)
def _asked_anew():
    pytorch.gpus_of_pytorch.cache_clear()
    yield
    pytorch.gpus_of_pytorch.cache_clear()


def pci(root: Path, kind: str, vendor: str) -> Path:
    device = root / "sys/bus/pci/devices/0000:0b:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text(kind)
    (device / "vendor").write_text(vendor)
    return root


@pytest.mark.parametrize(
    ("kind", "vendor", "others"),
    [
        ("0x030000", "0x1002", True),  # a GPU of AMD
        ("0x120000", "0x1002", True),  # one without a display
        ("0x038000", "0x8086", True),  # of Intel
        ("0x120000", "0x19e5", True),  # an accelerator of anybody
        ("0x030200", "0x10de", False),  # of NVIDIA, which NVML tells of
        ("0x030000", "0x1a03", False),  # the screen of a server
        ("0x020000", "0x8086", False),  # a network card
    ],
)
def test_pytorch_is_asked_where_there_may_be_another_gpu(tmp_path, monkeypatch, kind, vendor, others):
    monkeypatch.setattr(pytorch.platform, "system", lambda: "Linux")
    assert pytorch.may_have_others(pci(tmp_path, kind, vendor)) is others


def test_an_apple_chip_has_a_gpu(tmp_path, monkeypatch):
    assert not pytorch.may_have_others(tmp_path)
    monkeypatch.setattr(pytorch.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(pytorch.platform, "machine", lambda: "arm64")
    assert pytorch.may_have_others(tmp_path)


def tells(monkeypatch, output: str | Exception) -> list[list[str]]:
    """PyTorch's process says this. Returns the commands."""
    commands: list[list[str]] = []

    def run(command, **_):
        commands.append(command)
        if isinstance(output, Exception):
            raise output
        return SimpleNamespace(stdout=output)

    monkeypatch.setattr(pytorch, "may_have_others", lambda: True)
    monkeypatch.setattr(pytorch.subprocess, "run", run)
    return commands


def test_its_answer_is_taken_once(monkeypatch):
    with_capability = Gpu("NVIDIA X", GIB, compute_capability=(9, 0))
    commands = tells(monkeypatch, "a warning\n" + json.dumps([asdict(MI300X), asdict(with_capability)]))
    assert pytorch.gpus_of_pytorch() == (MI300X, with_capability)
    assert pytorch.gpus_of_pytorch() == (MI300X, with_capability)
    assert [command[1:] for command in commands] == [["-m", "gpuwise.runtime.devices.chips"]]


@pytest.mark.parametrize(
    "output", ["", "no json", "[1]", '[{"nonsense": 1}]', OSError("no"), subprocess.TimeoutExpired("python", 1.0)]
)
def test_no_answer_is_no_gpu(monkeypatch, output):
    tells(monkeypatch, output)
    assert pytorch.gpus_of_pytorch() == ()


def test_nobody_is_asked_where_there_is_none(monkeypatch):
    commands = tells(monkeypatch, "[]")
    monkeypatch.setattr(pytorch, "may_have_others", lambda: False)
    assert (pytorch.gpus_of_pytorch(), commands) == ((), [])


def test_what_the_process_prints_is_read_back(monkeypatch, capsys):
    monkeypatch.setattr(chips, "accelerators", lambda catalog: (SimpleNamespace(gpu=MI300X), SimpleNamespace(gpu=M2_MAX)))
    chips.main()
    tells(monkeypatch, capsys.readouterr().out)
    assert pytorch.gpus_of_pytorch() == (MI300X, M2_MAX)


@pytest.mark.parametrize(
    ("gpus", "chip_id", "count"), [((MI300X,) * 8, "mi300x", 8), ((M2_MAX,), "here-gpu", 1), ((MAX_1550,), "intel-max-1550", 1)]
)
def test_here_is_what_pytorch_tells(monkeypatch, gpus, chip_id, count):
    monkeypatch.setattr(machine_module, "detect_gpus", lambda: ())
    monkeypatch.setattr(machine_module, "gpus_of_pytorch", lambda: gpus)
    machine = detect_machine(CATALOG, measured=False)
    assert (machine.chip.id, machine.count) == (chip_id, count)
    assert parse_device("here", catalog=CATALOG).chip == machine.chip


def test_nvml_comes_first(monkeypatch):
    monkeypatch.setattr(machine_module, "detect_gpus", lambda: (Gpu("NVIDIA L4", 22 * GIB),))
    monkeypatch.setattr(machine_module, "gpus_of_pytorch", lambda: pytest.fail("asked in vain"))
    assert detect_machine(CATALOG, measured=False).chip.id == "l4"


def has(monkeypatch, kind: str, gpu: Gpu) -> None:
    """PyTorch and the machine have this."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(here_module.BACKENDS[kind], "count", lambda backend: 1)
    machine = machine_of(Cpu("Some CPU", "AMD", 8, 16, memory_bytes=64 * GIB), (gpu,), load_catalog())
    monkeypatch.setattr(run_start, "detect_machine", lambda catalog: machine)


@pytest.mark.parametrize(("kind", "gpu"), [("cuda", MI300X), ("mps", M2_MAX), ("xpu", MAX_1550)])
def test_a_run_is_on_the_accelerator(monkeypatch, kind, gpu):
    has(monkeypatch, kind, gpu)
    here = this_device()
    assert (here.torch_device, here.chip.vendor) == (kind, gpu.vendor)
    assert here.capacity_bytes is not None
    assert 0.5 * gpu.memory_bytes < here.capacity_bytes < gpu.memory_bytes
    assert torch_device(here.chip) == kind


def test_an_accelerator_that_the_machine_does_not_tell_of(monkeypatch):
    has(monkeypatch, "xpu", MAX_1550)
    cpu = machine_of(Cpu("Some CPU", "AMD", 8, 16, memory_bytes=64 * GIB), (), load_catalog())
    monkeypatch.setattr(run_start, "detect_machine", lambda catalog: cpu)
    monkeypatch.setattr(chips, "accelerators", lambda catalog: ())
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel Y")
    here = this_device()
    assert (here.torch_device, here.chip.name, here.capacity_bytes) == ("xpu", "Intel Y", None)


def test_a_gpu_that_this_pytorch_does_not_see(monkeypatch):
    has(monkeypatch, "cuda", MI300X)
    monkeypatch.setattr(here_module.BACKENDS["cuda"], "count", lambda backend: 0)
    here = this_device()
    assert isinstance(here, Here)
    assert (here.torch_device, here.chip.kind) == ("cpu", "cpu")
    with pytest.raises(UnsupportedError, match="does not find it"):
        torch_device(load_catalog().chips["mi300x"])
