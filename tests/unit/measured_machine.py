"""A machine to be measured whose worker is made up: what it says of each stage, and where it dies, is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cost.calibration import CalibrationEntry, StepSpread, Term, to_table
from gpuwise.hardware import Catalog, Machine
from gpuwise.hardware.detect import Cpu, DetectedMachine, machine_key
from gpuwise.hardware.detect.container import Container
from gpuwise.hardware.detect.machine import Interconnect, System
from gpuwise.hardware.detect.memory import Memory
from gpuwise.hardware.load import LoadSnapshot
from gpuwise.hardware.measured_chip import calibration_path
from gpuwise.measure import run as module
from gpuwise.measure.child import ChildDiedError
from gpuwise.results.measurement import AchievedPeak, MeasuredRow, MemoryLevel, Timing

CHIP = Catalog().chips["epyc-9654"]
QUIET = LoadSnapshot(1000.0, 5e8, 2000.0, 2, busy_s=100.0, idle_s=50.0, stolen_s=0.0, own_s=10.0)
FULL_OF_OTHERS = LoadSnapshot(1000.5, 5e8 + 0.5, 2000.5, 2, busy_s=101.0, idle_s=50.0, stolen_s=0.0, own_s=10.0)
TIMING = Timing(1e-3, 0.99e-3, 1.01e-3, 0.98e-3, 9)
FITTED = {
    "entries": {"gemm.fp32": to_table(CalibrationEntry({"compute": Term(2.5), "memory": Term(1.5)}, 2.0, 3e-6, (0.9, 1.2)))},
    "scale": {},
    "spreads": [asdict(StepSpread("cpu", "machine", mode, 0.9, 1.1, rows=8)) for mode in ("train", "infer")],
    "errors": {"a": 0.05, "b": -0.02, "c": 0.01},
}
SEEN = {
    "device": "cpu",
    "torch": "2.13.0",
    "networks": 6,
    "quick": 5,
    "writing": 0,
    "small": 0,
    "half": None,
    "threads": 2,
    "left_out": [],
}


@dataclass
class Worker:
    """seen: what it says of PyTorch; fitted: of a fit, or the error it ends with. dies: at which places of all stages, once
    each; before: any stage, that often. requests: in order; closed: how many of them ended."""

    seen: dict[str, Any] = field(default_factory=lambda: dict(SEEN))
    fitted: dict[str, Any] | BaseException = field(default_factory=lambda: FITTED)
    dies: set[int] = field(default_factory=set)
    dies_before: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    total: int = 0

    def __call__(self, worker: str, request: dict[str, Any], **_: Any) -> Iterator[dict[str, Any]]:
        assert worker == module.WORKER
        self.requests.append(request)
        try:
            yield from self._answers(request)
        finally:
            self.closed += 1

    def _answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "samples" in request:
            if isinstance(self.fitted, BaseException):
                raise self.fitted
            yield self.fitted
            return
        if "stages" not in request:
            yield self.seen
            return
        if self.dies_before:
            self.dies_before -= 1
            raise ChildDiedError("the benchmark failed with exit code 1: ImportError.")
        self.total = self.total or len(request["stages"])
        for number, stage in enumerate(request["stages"]):
            yield {"begun": number}
            place = self.total - len(request["stages"]) + number
            if place in self.dies:
                self.dies.remove(place)
                raise ChildDiedError(
                    "the benchmark was killed by SIGKILL, as the system does where memory is used up.", signal=9
                )
            yield from self._stage(stage, place)

    @staticmethod
    def _stage(stage: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
        group = {"network": "step", "peaks": "gemm", "copies": "copy", "collectives": "collective"}.get(
            stage["name"], stage["name"]
        )
        yield {"row": MeasuredRow(group, f"row of stage {place}", TIMING, "fp32", {"n": place}, 10, 20).to_dict()}
        if stage["name"] == "network":
            yield {"samples": {"name": f"network {stage['network']}"}}
        if stage["name"] == "peaks":
            peaks = [
                AchievedPeak("bf16", 3.9e11, None, "2048 × 2048 × 2048", 0.02),
                AchievedPeak("fp32", 2.5e11, None, "1024 × 1024 × 1024"),
            ]
            yield {"peaks": [asdict(peak) for peak in peaks]}
            yield {"note": "a note"}
            yield {"note": "a note"}
        if stage["name"] == "memory":
            yield {"levels": [asdict(MemoryLevel("L1", 3e11, 2**15)), asdict(MemoryLevel("memory", 3.12345e10))]}


@dataclass
class Here:
    """worker: see Worker. loads: snapshots that are taken, in order; the last from then on. machine, detected: what is here."""

    worker: Worker
    machine: Machine
    detected: DetectedMachine
    loads: list[LoadSnapshot]

    @property
    def path(self) -> Path:
        return calibration_path(machine_key(self.detected))


def set_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """This machine, with its configuration in a folder."""
    cpu = Cpu("Some CPU", "AMD", 2, 2, 3e9, ("avx2",), memory_bytes=8 * 2**30)
    detected = DetectedMachine(cpu, Memory(8 * 2**30, 6 * 2**30), Container(), (), (), (), Interconnect(), System("Linux 6.18"))
    here = Here(Worker(), Machine(CHIP, 1, None, None, 2, 8 * 2**30, "Some CPU, 2 cores, 8 GiB"), detected, [QUIET])
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(folder))
    monkeypatch.setattr(module, "answers", here.worker)
    monkeypatch.setattr(module, "detect", lambda: here.detected)
    monkeypatch.setattr(module, "detect_machine", lambda catalog, *, measured: here.machine)
    monkeypatch.setattr(module, "load", lambda: here.loads.pop(0) if len(here.loads) > 1 else here.loads[0])
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    return here
