"""Collectives that were timed between two processes of this machine, in the forecast of two ranks on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from gpuwise.cli.main import main  # noqa: E402
from gpuwise.hardware import load_catalog  # noqa: E402
from gpuwise.hardware.detect import detect, detect_machine, machine_key  # noqa: E402
from gpuwise.hardware.measured_chip import calibration_path  # noqa: E402
from gpuwise.measure import calibration_file  # noqa: E402
from gpuwise.measure.chip_figures import chip_figures  # noqa: E402
from gpuwise.measure.probes import collectives  # noqa: E402

JOB = ("forecast", "tabular-mlp", "--on", "here", "--precision", "fp32")


def forecast(*arguments: str) -> dict:
    result = CliRunner().invoke(main, [*JOB, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_collectives_that_were_measured_here_price_the_exchange_of_ranks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    chip = detect_machine(load_catalog()).chip
    if chip.kind != "cpu":
        pytest.skip("the accelerator of this machine has collectives of its own")
    rough = forecast("--mesh", "dp=2")
    assert rough["provenance"]["communication"] == "measured on another machine"

    rows = list(collectives.rows(0.1, torch.device("cpu"), lambda _: None))
    figures = chip_figures(chip, rows, [], [])
    nothing = {"entries": {}, "scale": {}, "spreads": [], "errors": {}}
    path = calibration_path(machine_key(detect()))
    calibration_file.check_writable(path)
    calibration_file.write(path, chip.id, nothing, figures, {"date": "2026-01-01", "threads": 1})

    measured = forecast("--mesh", "dp=2")
    (link,) = measured["network"]
    (call,) = [row for row in rows if row.name == "all_reduce" and row.bytes == max(r.bytes for r in rows)]
    assert link["provenance"] == measured["provenance"]["communication"] == "measured here"
    assert link["source"] == "gpuwise measure on this machine"
    # Of two ranks, a ring sends half of the bytes twice: its bus bandwidth is the bytes over the seconds.
    assert link["busbw_bytes_per_s"] == pytest.approx(call.bytes / call.timing.median_s, rel=0.01)
    assert [link["low"], link["high"]] == figures["achieved"]["collective_spread"]
    note = next(note for note in measured["assumption_notes"] if note["kind"] == "ranks-share-cpu")
    assert "2 processes reached in `gpuwise measure`" in note["text"]
    assert forecast("--mesh", "dp=4")["network"][0]["provenance"] == "measured here"
    assert forecast()["network"] == []
