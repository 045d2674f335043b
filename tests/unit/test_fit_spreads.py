"""Spreads of steps put into their file: those of other steps stay, and nothing is written that could not be read."""

from __future__ import annotations

import shutil

import pytest
from benchmarks.fit import write, write_spreads

from gpuwise.cost.calibration import parse_steps, shipped_steps
from gpuwise.errors import FileFormatError


@pytest.fixture
def target(tmp_path, monkeypatch):
    shutil.copy(write.FOLDER / "steps.toml", tmp_path / "steps.toml")
    monkeypatch.setattr(write_spreads, "FOLDER", tmp_path)
    return tmp_path / "steps.toml"


def test_rows_replace_those_of_the_same_steps_and_add_to_the_others(target):
    before = shipped_steps()
    row = {"family": "gpu", "level": "chip", "mode": "infer", "compiled": False, "low": 0.83, "high": 1.17, "rows": 120}
    write_spreads.write_spreads([row, {**row, "compiled": True, "low": 0.7}])
    after = parse_steps(target.read_text(encoding="utf-8"))
    results = {(s.family, s.level, s.mode, s.compiled): s for s in after}
    assert (results["gpu", "chip", "infer", False].low, results["gpu", "chip", "infer", False].rows) == (0.83, 120)
    assert results["gpu", "chip", "infer", True].low == 0.7
    assert {s for s in before if s.level != "chip"} <= set(after)


def test_rows_that_make_no_sense_leave_the_file_as_it_was(target):
    before = target.read_text(encoding="utf-8")
    row = {"family": "gpu", "level": "chip", "mode": "infer", "low": 1.2, "high": 1.3}
    with pytest.raises(FileFormatError, match="low"):
        write_spreads.write_spreads([row])
    assert target.read_text(encoding="utf-8") == before
