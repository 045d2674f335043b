"""What `train` starts with on this machine, and that all verbs price a step alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_plan_cpu_choice import CPU, trace_of

from gpuwise.api import cpu_settings, run_start
from gpuwise.api.cpu_settings import has_compiler, own_price
from gpuwise.api.devices import device_of, with_threads_of_environment
from gpuwise.api.planning import job_and_request
from gpuwise.api.run_start import Here, forecast_here, this_device
from gpuwise.api.source import StepSource
from gpuwise.api.step_price import step_price
from gpuwise.errors import UnsupportedError
from gpuwise.hardware import detect, detect_machine, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.cpu.compile_time import drawing_s
from gpuwise.strategy import HostSettings, Strategy
from gpuwise.trace import Trace, TraceFamily, family_of_one

COMPILED = Strategy(compile=True)
NUMBERS = 10_000_000


class Drawing(StepSource):
    """A job that draws random numbers. eager: whether there is a trace of it not compiled."""

    def __init__(self, *, eager: bool = True):
        super().__init__("drawing", "", {})
        self.eager = eager

    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        return family_of_one(self.step(strategy, target))

    def step(self, strategy: Strategy, target: str) -> Trace:
        if not (strategy.compile or self.eager):
            raise UnsupportedError("it was recorded compiled.")
        return trace_of(strategy, images=False, random_numbers=NUMBERS)


def test_a_cpu_that_was_measured_is_forecast_as_measured(monkeypatch: pytest.MonkeyPatch):
    machine = detect_machine(load_catalog(), measured=False)
    cpu = replace(load_catalog().chips["epyc-9654"], calibration="/somewhere/machines/this.toml")
    monkeypatch.setattr(run_start, "detect_machine", lambda catalog: replace(machine, chip=cpu, count=1))
    here = this_device()
    assert here.chip is cpu
    assert (here.capacity_bytes, here.torch_device) == (machine.host_memory_bytes, "cpu")


@pytest.mark.parametrize(
    ("openmp", "threads", "cores"), [("", None, 96), ("24", None, 24), ("24", 48, 48), ("", 12, 12), ("200", None, 96)]
)
def test_a_run_is_forecast_on_the_threads_that_it_has(
    openmp: str, threads: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
):
    cpu = load_catalog().chips["epyc-9654"]
    monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    part = Here(cpu, None, "cpu").with_threads(threads).chip
    assert (cpu.sm_count, part.sm_count) == (96, cores)
    assert part.peak_flops_per_s["fp32"] == pytest.approx(cpu.peak_flops_per_s["fp32"] * cores / 96)
    gpu = load_catalog().chips["l4"]
    assert Here(gpu, None, "cuda").with_threads(1).chip is gpu


@pytest.mark.parametrize(("ranks", "cores"), [(1, 24), (2, 48)])
def test_forecasts_and_plans_for_this_machine_have_the_threads_of_the_environment(
    ranks: int, cores: int, monkeypatch: pytest.MonkeyPatch
):
    """Ranks divide all cores, each with threads of its own."""
    machine = detect_machine(load_catalog(), measured=False)
    many = replace(machine, chip=load_catalog().chips["epyc-9654"], count=1)
    monkeypatch.setattr(detect, "detect_machine", lambda catalog: many)
    monkeypatch.setenv("OMP_NUM_THREADS", "24")
    device = with_threads_of_environment(device_of(f"here:{ranks}", load_catalog()))
    assert device.chip.sm_count == cores
    assert any("a step has 24 of this machine's 96 cores" in str(note) for note in device.assumptions) == (ranks == 1)
    request = job_and_request("gpt2", {"samples": 1000}, on="here", own=(), limit=None)[1]
    assert request.here is not None
    assert request.here.chip.sm_count == 24


def test_compiled_steps_on_a_cpu_take_their_random_numbers_whoever_asks():
    source = Drawing()
    eager = step_price(source, Cluster(CPU), Strategy(), history=False)[1]
    without = step_price(Drawing(eager=False), Cluster(CPU), COMPILED, history=False)[0]
    added_s = drawing_s(eager, CPU)
    expected_s = pytest.approx(without.step_time_s.value + added_s)
    assert added_s > 0.1
    results = [
        own_price(source, CPU, None)(COMPILED)[0],
        forecast_here(source, COMPILED, Here(CPU, None, "cpu"), HostSettings()),
    ]
    assert [forecast.step_time_s.value for forecast in results] == [expected_s, expected_s]
    assert results[0] == results[1]
    assert "random numbers of compiled steps are not priced: it was recorded compiled." in without.assumptions


def test_a_compiler_is_the_one_that_is_taken_with_pythons_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def there(*names: str) -> None:
        monkeypatch.setattr(cpu_settings.shutil, "which", lambda name: name if name in names else None)

    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(cpu_settings.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(cpu_settings.sys, "platform", "linux")
    monkeypatch.delenv("CXX", raising=False)
    there("clang++", "c++")
    assert not has_compiler()
    there("g++")
    assert has_compiler()
    monkeypatch.setenv("CXX", "clang++-19")
    assert not has_compiler()
    there("clang++-19")
    assert has_compiler()
    (tmp_path / "Python.h").unlink()
    assert not has_compiler()
