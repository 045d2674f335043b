"""What doctor says of a machine that is not this one."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gpuwise.api import installation as module
from gpuwise.api.installation import inspect_installation
from gpuwise.hardware import Catalog, Cpu, Gpu
from gpuwise.hardware.detect import DetectedMachine, GpuLoad, GpuPair, Interconnect, NumaNode, detect, machine_key
from gpuwise.hardware.measured_chip import calibration_path
from gpuwise.report.doctor import doctor_report
from gpuwise.report.json import to_json
from gpuwise.results.installation import Installation

GPU = Gpu("NVIDIA H100 80GB HBM3", 80 << 30, driver="570.1", power_limit_w=500.0, default_power_limit_w=700.0, nvlinks=18)
LOAD = GpuLoad(GPU.name, 0.45, 80 << 30, 3 << 30, (5, 6), power_limit_w=500.0, held_back=("power limit",))


def text(found: Installation, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(doctor_report(found))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path) -> DetectedMachine:
    return replace(
        detect(tmp_path),
        cpu=Cpu("Intel(R) Xeon(R) Platinum 8480+", "Intel", 112, 224, 3.8e9, ("avx512", "amx"), sockets=2),
        gpus=(GPU, GPU),
        gpu_loads=(LOAD, replace(LOAD, busy=0.0, processes=(), held_back=())),
        interconnect=Interconnect(2, (NumaNode(0, "0-111"), NumaNode(1, "112-223")), (GpuPair(0, 1, "NVLink switch"),)),
        gpus_told_by="NVML",
    )


def inspected(
    monkeypatch: pytest.MonkeyPatch, detected: DetectedMachine, torch: str = "2.13.0+cu128", *, torchvision_broken: bool = False
) -> Installation:
    monkeypatch.setattr("gpuwise.api.installation._torchvision_misses_cuda", lambda: torchvision_broken)
    monkeypatch.setattr(module, "detect", lambda: detected)
    monkeypatch.setattr(module, "PRESETS", {})
    monkeypatch.setattr(module, "_version", lambda package: torch if package == "torch" else "1.0")
    return inspect_installation(Catalog())


def test_a_server_with_gpus(monkeypatch: pytest.MonkeyPatch, server: DetectedMachine):
    result = inspected(monkeypatch, server)
    assert (result.device, result.gpus, result.machine_key) == ("h100-80gb-sxm", (f"{GPU.name} x 2",), machine_key(server))
    assert result.problems == ()
    message = " ".join(text(result).split())
    for words in (
        "2 × NVIDIA H100 80GB HBM3 with Intel(R) Xeon(R) Platinum 8480+",
        "112 cores, 224 threads",
        "power limit 500 W (default 700 W)",
        "busy 45 % of the time, 3 GiB in use by 2 processes, held back by power limit; busy 0 % of the time, 3 GiB in use",
        "2 sockets, 2 NUMA nodes; NVLink switch (1 pair of GPUs)",
        result.machine_key,
    ):
        assert words in message
    assert json.loads(to_json(result.to_dict()))["detected"]["gpus"][0]["nvlinks"] == 18
    assert max(map(len, text(result, 80).splitlines())) <= 80


def test_what_should_be_mended_of_gpus(monkeypatch: pytest.MonkeyPatch, server: DetectedMachine):
    result = inspected(monkeypatch, server, torch="2.13.0+cpu")
    assert [problem.split(":")[0] for problem in result.problems] == [
        "PyTorch is a build for CPUs alone and leaves the GPU unused",
    ]


def test_a_machine_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    result = inspected(monkeypatch, detect(tmp_path))
    assert result.problems == ()
    assert "none found" in text(result)
    assert "None" not in text(result)


def test_a_torchvision_built_for_another_pytorch_is_to_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    result = inspected(monkeypatch, detect(tmp_path), torchvision_broken=True)
    assert any("torchvision is a build for CUDA beside a PyTorch for CPUs" in problem for problem in result.problems)
    assert "torchvision" in result.versions


def test_it_says_when_this_machine_was_measured(monkeypatch: pytest.MonkeyPatch, server: DetectedMachine, tmp_path: Path):
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    assert "no: `gpuwise measure` does" in text(inspected(monkeypatch, server))
    path = calibration_path(machine_key(server))
    path.parent.mkdir()
    kept = (
        'schema = 1\nlevel = "machine"\nof = "h100-80gb-sxm"\n[measured]\ntaken = "2026-11-30T19:20:54+00:00"\nquick = true\n'
    )
    path.write_text(kept)
    result = inspected(monkeypatch, server)
    assert (result.measured, result.problems) == ("2026-11-30, quick", ())
    path.write_text(kept + "[[")
    result = inspected(monkeypatch, server)
    assert result.measured == ""
    assert [note.kind for note in result.problem_notes] == ["measurement-left-out"]
