"""`here` after a measurement: the machine's chip with what was found of it, and without where the file is no use."""

from __future__ import annotations

import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import gpuwise
from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels.limits import most_flops_per_s
from gpuwise.cost.offload import copy_bytes_per_s
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import units_for
from gpuwise.hardware import Catalog, detect_machine
from gpuwise.hardware.detect import Cpu, DetectedMachine, Gpu, machine_key
from gpuwise.hardware.detect import machine as module
from gpuwise.hardware.detect.container import Container
from gpuwise.hardware.detect.machine import Interconnect, System
from gpuwise.hardware.detect.memory import Memory
from gpuwise.hardware.links import host_link, link_inside
from gpuwise.hardware.measured_chip import any_calibration, calibration_path, seal_of, with_measurements
from gpuwise.hardware.types import AchievedRates, Source

CATALOG = Catalog()
CPU, GPU = CATALOG.chips["epyc-9654"], CATALOG.chips["h200-141gb-sxm"]
HERE = Cpu("Some CPU", "AMD", 2, 2, 3e9, ("avx2",), memory_bytes=8 * 2**30)
TEXT = """
schema = 1
level = "machine"
of = "{chip}"

[measured]
taken = "2026-05-04T12:30:00+00:00"

[chip]
memory_bandwidth_bytes_per_s = 3.1e10
as_of = "2026-05-04"

[chip.peak_flops_per_s]
fp32 = 2.5e11
bf16 = 3.9e11
moons = 1e12
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    return tmp_path


def put(text: str, machine: str = "here") -> Path:
    path = calibration_path(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_where_it_is_kept(home: Path):
    assert calibration_path("amd-epyc-2c-9f3a1c") == home / "machines" / "amd-epyc-2c-9f3a1c.toml"
    assert not any_calibration()
    put("", "another")
    assert any_calibration()


def test_the_figures_of_a_cpu_are_those_measured():
    path = put(TEXT.format(chip=CPU.id))
    result = with_measurements(CPU, "here")
    assert result.calibration == str(path)
    assert result.peak_flops_per_s == {**CPU.peak_flops_per_s, "fp32": 2.5e11, "bf16": 3.9e11}
    assert result.memory_bandwidth_bytes_per_s == 3.1e10
    source = Source("gpuwise measure on this machine", "2026-05-04")
    assert {result.source_of(name) for name in ("fp32", "bf16", "memory_bandwidth_bytes_per_s")} == {source}
    assert result.source_of("tdp_w") == CPU.source_of("tdp_w")
    assert "fp32" not in result.unverified
    assert (result.id, result.name, result.sm_count) == (CPU.id, CPU.name, CPU.sm_count)


def test_a_gpu_keeps_its_sheet_and_gets_the_calibration():
    path = put(TEXT.format(chip=GPU.id))
    assert with_measurements(GPU, "here") == replace(GPU, calibration=str(path))


def test_what_a_gpu_achieved_is_what_forecasts_price_by():
    """Ceilings of kernels, copies over the host link, and collectives between as many devices."""
    put(
        f'schema = 1\nlevel = "machine"\nof = "{GPU.id}"\n[chip.achieved]\nmemory_bandwidth_bytes_per_s = 4.1e12\n'
        "host_link_bytes_per_s = 5.3e10\nhost_link_error = 0.02\nall_reduce_devices = 8\n"
        "all_reduce_busbw_bytes_per_s = 3.7e11\nall_reduce_latency_s = 2e-5\nall_reduce_error = 0.05\n"
        '[chip.achieved.peak_flops_per_s]\nbf16 = 7.4e14\nunheard-of = 1e12\nfp16 = "much"\n'
    )
    chip, catalog = with_measurements(GPU, "here"), Catalog()
    assert chip.achieved == AchievedRates({"bf16": 7.4e14}, 4.1e12, 5.3e10, 0.02, 8, 3.7e11, 2e-5, 0.05)
    units = units_for(chip, dtype="bfloat16", kind="gemm", precision="bf16", parameters=parameters())
    assert most_flops_per_s(chip, units) == 7.4e14 < most_flops_per_s(GPU, units)
    copies, sheet = host_link(chip, catalog), host_link(GPU, catalog)
    assert copy_bytes_per_s(copies, parameters()) == 5.3e10 != copy_bytes_per_s(sheet, parameters())
    assert copies.name == f"{sheet.name} as measured here (± 2 %)"
    eight = link_inside(chip, 8, catalog=catalog)
    assert (eight.allreduce_busbw_bytes_per_s, eight.latency_s) == (3.7e11, 2e-5)
    assert eight.name.endswith("as measured here (± 5 %)")
    assert link_inside(chip, 4, catalog=catalog) == link_inside(GPU, 4, catalog=catalog)


def test_what_processes_of_a_cpu_exchange_is_read():
    put(
        TEXT.format(chip=CPU.id)
        + "[chip.achieved]\nall_reduce_devices = 2\nall_reduce_busbw_bytes_per_s = 9e8\nall_reduce_latency_s = 3e-4\n"
        + "collective_spread = [0.5, 3]\n[chip.achieved.collective_busbw_bytes_per_s]\nall_gather = 7e8\nmoons = 'much'\n"
    )
    chip = with_measurements(CPU, "here")
    assert chip.peak_flops_per_s["fp32"] == 2.5e11
    assert chip.achieved == AchievedRates(
        all_reduce_devices=2,
        all_reduce_busbw_bytes_per_s=9e8,
        all_reduce_latency_s=3e-4,
        collective_busbw_bytes_per_s={"all_gather": 7e8},
        collective_spread=(0.5, 3.0),
    )


@pytest.mark.parametrize(("threads", "read"), [("1", 1), ("0", None), ("true", None), ("'many'", None)])
def test_the_threads_of_a_measurement_are_read(threads: str, read: int | None):
    put(TEXT.format(chip=CPU.id).replace("[measured]", f"[measured]\nthreads = {threads}"))
    achieved = with_measurements(CPU, "here").achieved
    assert (None if achieved is None else achieved.threads) == read


@pytest.mark.parametrize("spread", ["3", "[1]", "['a', 'b']", "[2, 3]", "[0, 2]", "[1, inf]", "[true, true]"])
def test_a_spread_that_is_none_is_left_out(spread: str):
    put(TEXT.format(chip=CPU.id) + f"[chip.achieved]\ncollective_spread = {spread}\n")
    achieved = with_measurements(CPU, "here").achieved
    assert achieved is not None
    assert achieved.collective_spread is None


def test_nothing_was_measured_or_another_chip():
    assert with_measurements(CPU, "here") is CPU
    put(TEXT.format(chip=GPU.id))
    assert with_measurements(CPU, "here") is CPU


def test_a_file_that_was_changed_is_no_measurement():
    text = TEXT.format(chip=CPU.id)
    path = put(f'seal = "{seal_of(tomllib.loads(text))}"\n{text}')
    assert with_measurements(CPU, "here").peak_flops_per_s["fp32"] == 2.5e11
    path.write_text(path.read_text().replace("2.5e11", "2.6e11"))
    assert with_measurements(CPU, "here") == replace(CPU, calibration=str(path))


@pytest.mark.parametrize("text", ["schema = ", "a = " + "[" * 100_000, "a = " + "9" * 5000, "\0"])
def test_a_damaged_file_is_pointed_to_so_that_the_forecast_says_so(text: str):
    path = put(text)
    result = with_measurements(CPU, "here")
    assert result == replace(CPU, calibration=str(path))
    with pytest.warns(UserWarning, match="what was measured on this machine is left out"):
        assert calibration(result) == calibration(CPU)


@pytest.mark.parametrize(
    "figures",
    [
        "chip = 3",
        "chip = []",
        '[chip]\npeak_flops_per_s = "much"',
        "[chip]\npeak_flops_per_s = [1e11]",
        "[chip.peak_flops_per_s]",
        *(
            f"[chip]\nmemory_bandwidth_bytes_per_s = {value}\n[chip.peak_flops_per_s]\nfp32 = {value}"
            for value in (
                "nan",
                "inf",
                "-3e10",
                "0",
                "1e30",
                "true",
                '"3e10"',
                "[3e10]",
                "{ a = 1 }",
                "1979-05-27",
                "9" * 400,
                "[" * 90 + "]" * 90,
            )
        ),
    ],
)
def test_absurd_figures_are_ignored(figures: str):
    put(f'schema = 1\nlevel = "machine"\nof = "{CPU.id}"\n{figures}\n')
    result = with_measurements(CPU, "here")
    assert result.peak_flops_per_s == CPU.peak_flops_per_s
    assert result.memory_bandwidth_bytes_per_s == CPU.memory_bandwidth_bytes_per_s


def detected(gpus: tuple[Gpu, ...] = ()) -> DetectedMachine:
    return DetectedMachine(HERE, Memory(8 * 2**30, 6 * 2**30), Container(), (), gpus, (), Interconnect(), System("Linux 6.18"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """HERE is this machine. What was looked at beside its processor and GPUs."""
    looked: list[str] = []
    monkeypatch.setattr(module, "detect_cpu", lambda: HERE)
    monkeypatch.setattr(module, "detect_gpus", lambda: ())
    monkeypatch.setattr(module, "detect", lambda: looked.append("all of it") or detected())
    return looked


def test_here_is_as_measured(machine: list[str]):
    sheet = detect_machine(CATALOG).chip
    assert sheet.calibration == ""
    assert machine == [], "nobody looks closer before anything was measured"
    path = put(TEXT.format(chip=sheet.id), machine_key(detected()))
    result = detect_machine(CATALOG)
    assert result.chip.calibration == str(path)
    assert result.chip.peak_flops_per_s["fp32"] == 2.5e11
    assert detect_machine(CATALOG, measured=False).chip == sheet
    assert len(machine) == 1


def test_the_file_of_another_machine_in_the_same_home_is_not_ours(machine: list[str]):
    sheet = detect_machine(CATALOG).chip
    other = replace(detected(), cpu=replace(HERE, cores=4, threads=4))
    put(TEXT.format(chip=sheet.id), machine_key(other))
    assert detect_machine(CATALOG).chip == sheet


def test_a_forecast_on_here_rests_on_it(machine: list[str], recwarn: pytest.WarningsRecorder):
    sheet = detect_machine(CATALOG).chip
    before = gpuwise.forecast("gpt2", on="here:1", micro_batch=1, precision="fp32")
    entry = '\n[entry."gemm.fp32"]\nfloor_s = 1e-6\n[entry."gemm.fp32".terms.compute]\nscale = 1.1\n'
    put(TEXT.format(chip=sheet.id) + entry, machine_key(detected()))
    after = gpuwise.forecast("gpt2", on="here:1", micro_batch=1, precision="fp32")
    assert after.rests_on["measured here"] > 0.2
    assert "measured here" not in before.rests_on
    assert after.step_time_s.value != before.step_time_s.value
    unverified = [line for line in before.assumptions if line.startswith("unverified")]
    assert any("memory_bandwidth" in line for line in unverified)
    assert not any("memory_bandwidth" in line for line in after.assumptions)
    assert not [w for w in recwarn if "measured" in str(w.message)]


def test_a_damaged_file_does_not_stop_a_forecast(machine: list[str]):
    put("schema = 1\nlevel = 'machine'\nof = ", machine_key(detected()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gpuwise.forecast("gpt2", on="here:1", micro_batch=1)
    assert result.step_time_s.value > 0
    assert len({str(w.message) for w in caught if "left out" in str(w.message)}) == 1
