"""A measurement from beginning to end, with a worker that is made up: what it asks for, gathers, writes and says."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from measured_machine import CHIP, FITTED, QUIET, Here, set_up

from gpuwise.cli.main import main
from gpuwise.cost.calibration import calibration
from gpuwise.hardware import Catalog
from gpuwise.hardware.measured_chip import with_measurements
from gpuwise.hardware.types import AchievedRates, Source
from gpuwise.measure.run import measure
from gpuwise.results.measurement import METHOD, Progress


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return set_up(tmp_path, monkeypatch)


def test_a_whole_measurement(here: Here):
    result = measure()
    assert (result.complete, result.interrupted, result.quick, result.device, result.chip) == (
        True,
        False,
        False,
        "cpu",
        CHIP.id,
    )
    assert result.calibration == str(here.path)
    assert here.path.exists()
    assert result.error == 0.02
    assert [row.sizes["n"] for row in result.rows] == list(range(here.worker.total))
    assert [(p.dtype, p.measured, p.datasheet) for p in result.peaks] == [
        ("bf16", 3.9e11, CHIP.peak_flops_per_s["bf16"]),
        ("fp32", 2.5e11, CHIP.peak_flops_per_s["fp32"]),
    ]
    assert [(level.name, level.datasheet) for level in result.memory] == [
        ("L1", None),
        ("memory", CHIP.memory_bandwidth_bytes_per_s),
    ]
    assert [note for note in result.notes if "datasheet" not in note] == ["a note"], "each is said once"
    assert (result.method, result.torch_version, result.machine) == (METHOD, "2.13.0", here.machine.name)
    assert result.detected["cpu"]["name"] == "Some CPU"
    json.dumps(result.to_dict())


def test_what_the_worker_is_asked(here: Here):
    measure(quick=True)
    look, sweep, fit = here.worker.requests
    assert look == {}
    assert sweep["device"] == "cpu"
    assert sum(stage["name"] == "network" for stage in sweep["stages"]) == here.worker.seen["quick"]
    assert [sample["name"] for sample in fit["samples"]] == [f"network {n}" for n in range(5)]
    assert fit["figures"] == {"peak_flops_per_s": {"bf16": 3.9e11, "fp32": 2.5e11}, "memory_bandwidth_bytes_per_s": 3.123e10}
    assert here.worker.closed == 3, "no worker is left behind"


def test_forecasts_on_this_machine_rest_on_it_at_once(here: Here):
    measure()
    chip = with_measurements(CHIP, here.path.stem)
    assert chip.peak_flops_per_s["fp32"] == 2.5e11
    assert chip.memory_bandwidth_bytes_per_s == 3.123e10
    result = calibration(chip)
    assert result.find("gemm", "fp32").level == "machine"
    assert [spread.level for spread in result.spreads] == ["machine", "machine"]


def test_figures_of_a_slice_of_a_known_processor_are_said_to_be_such(here: Here):
    text = "epyc-9654 scaled to 2 cores"
    here.machine = replace(here.machine, chip=replace(CHIP, source=Source(text, "2026-05-04", verified=False)))
    assert f"the datasheet figures are not of this very processor: {text}" in measure().notes


def test_the_file_says_when_and_how(here: Here):
    answer = tomllib.loads((measure(quick=True) and here.path).read_text())["measured"]
    assert answer["quick"] is True
    assert answer["complete"] is True
    assert {note for note in answer["notes"] if "datasheet" not in note} == {"a note"}
    assert (answer["method"], answer["torch"], answer["threads"], answer["machine"]) == (METHOD, "2.13.0", 2, here.machine.name)


def test_progress_is_told_before_each_stage_and_after_each_figure(here: Here):
    messages: list[Progress] = []
    result = measure(on_progress=messages.append)
    total = here.worker.total
    assert [p.done for p in messages] == sorted(p.done for p in messages)
    assert {p.total for p in messages} == {total}
    assert [p.row for p in messages if p.row is not None] == list(result.rows)
    assert (messages[0].done, messages[0].row, messages[0].what) == (0, None, "memory bandwidth")
    assert (messages[-1].done, messages[-1].what) == (total, "fitting the calibration")


def test_a_second_measurement_replaces_the_first_whole(here: Here):
    measure()
    here.worker.fitted = {**FITTED, "entries": {"norm": FITTED["entries"]["gemm.fp32"]}, "spreads": []}
    measure(quick=True)
    data = tomllib.loads(here.path.read_text())
    assert set(data["entry"]) == {"norm"}
    assert "spread" not in data
    assert data["measured"]["quick"] is True
    assert [path.name for path in here.path.parent.iterdir()] == [here.path.name]


def test_a_gpu_keeps_the_figures_of_its_sheet(here: Here):
    gpu = Catalog().chips["h200-141gb-sxm"]
    here.machine = replace(here.machine, chip=gpu)
    here.worker.seen["device"] = "cuda"
    here.worker.fitted = {**FITTED, "entries": {}, "scale": {"gemm.bf16": 1.1}, "spreads": []}
    result = measure()
    achieved = {"peak_flops_per_s": {"bf16": 3.9e11, "fp32": 2.5e11}, "memory_bandwidth_bytes_per_s": 3.123e10}
    assert here.worker.requests[-1]["figures"] == {"achieved": achieved}
    assert here.worker.requests[1]["device"] == "cuda"
    data = tomllib.loads(here.path.read_text())
    assert (data["of"], data["scale"], data["chip"]["achieved"]) == (gpu.id, {"gemm.bf16": 1.1}, achieved)
    assert result.peaks[0].datasheet == gpu.peak_flops_per_s["bf16"]
    chip = with_measurements(gpu, here.path.stem)
    assert chip == replace(gpu, calibration=str(here.path), achieved=AchievedRates(**achieved))
    assert (chip.peak_flops_per_s, chip.memory_bandwidth_bytes_per_s) == (
        gpu.peak_flops_per_s,
        gpu.memory_bandwidth_bytes_per_s,
    )


def test_half_precision_where_the_machine_has_it(here: Here):
    here.worker.seen["half"] = "amp-bf16"
    measure()
    assert {stage["precision"] for stage in here.worker.requests[1]["stages"]} == {"fp32", "amp-bf16"}


def test_what_disturbed_it_is_said_in_the_result_and_in_the_file(here: Here):
    after = replace(QUIET, taken_s=1060.0, wall_s=5e8 + 3660.0, awake_s=2060.0, busy_s=130.0, idle_s=140.0, own_s=20.0)
    here.loads = [QUIET, QUIET, QUIET, after]
    notes = measure().notes
    assert "other processes used 17 % of the processors meanwhile" in notes
    assert "the system clock jumped by 3600 s; times are from the monotonic clock" in notes
    assert set(notes) <= set(tomllib.loads(here.path.read_text())["measured"]["notes"])


def test_too_few_networks_fit_nothing(here: Here):
    here.worker.seen["quick"] = 3
    result = measure(quick=True)
    assert len(here.worker.requests) == 2
    assert (result.calibration, result.error) == ("", None)
    assert not here.path.exists()
    assert any("too few training steps" in note for note in result.notes)
    assert result.rows


def test_the_command_line(here: Here):
    pytest.importorskip("torch")
    done = CliRunner().invoke(main, ["measure", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["calibration"], data["complete"], len(data["rows"])) == (str(here.path), True, here.worker.total)
    assert data["ridges"]["fp32"] == pytest.approx(2.5e11 / 3.12345e10)
