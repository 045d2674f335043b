"""Measurements that are interrupted, killed, crowded out or cannot be written: what was found stays, nothing is half done."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.measured_machine import FULL_OF_OTHERS, QUIET, Here, set_up

from gpuwise.cli.main import main
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import Catalog
from gpuwise.hardware.detect.memory import Memory
from gpuwise.measure.child import ChildDiedError
from gpuwise.measure.run import MOST_DEATHS, measure
from gpuwise.results.measurement import Progress


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return set_up(tmp_path / "config", monkeypatch)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def interrupting(at: int):
    """Ctrl-C before the stage at this place."""

    def progress(now: Progress) -> None:
        if now.done == at:
            raise KeyboardInterrupt

    return progress


def networks_begin(here: Here) -> int:
    measure(quick=True)
    here.path.unlink()
    stages = here.worker.requests[1]["stages"]
    here.worker.requests.clear()
    here.worker.closed = 0
    return next(place for place, stage in enumerate(stages) if stage["name"] == "network")


class TestInterrupted:
    def test_what_there_is_is_kept_and_fitted(self, here: Here):
        first = networks_begin(here)
        result = measure(quick=True, on_progress=interrupting(first + 4))
        assert (result.complete, result.interrupted) == (False, True)
        assert len(result.rows) == first + 4
        assert len(here.worker.requests[-1]["samples"]) == 4
        assert result.calibration == str(here.path)
        assert "complete = false" in here.path.read_text()
        assert here.worker.closed == len(here.worker.requests) == 3, "the worker was ended"

    def test_too_early_to_fit_it_writes_nothing(self, here: Here):
        first = networks_begin(here)
        result = measure(quick=True, on_progress=interrupting(first + 3))
        assert (result.interrupted, result.calibration) == (True, "")
        assert len(result.rows) == first + 3
        assert files(here.path.parent) == []

    def test_at_once(self, here: Here):
        result = measure(on_progress=interrupting(0))
        assert (result.interrupted, result.rows, result.peaks, result.memory) == (True, (), (), ())
        assert result.ridges == {}

    def test_while_fitting(self, here: Here):
        here.worker.fitted = KeyboardInterrupt()
        try:
            result = measure()
        except KeyboardInterrupt:  # would end the test run
            pytest.fail("what was measured is lost")
        assert (result.complete, result.interrupted, result.calibration) == (False, True, "")
        assert len(result.rows) == here.worker.total
        assert files(here.path.parent) == []

    def test_the_command_line_shows_what_was_found_and_ends_as_shells_expect(self, here: Here, monkeypatch: pytest.MonkeyPatch):
        pytest.importorskip("torch")
        stage, calls = here.worker._stage, []

        def interrupted(*arguments):
            calls.append(arguments)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return stage(*arguments)

        monkeypatch.setattr(here.worker, "_stage", interrupted)
        done = CliRunner().invoke(main, ["measure", "--quick", "--json"])
        assert done.exit_code == 130
        assert len(json.loads(done.stdout)["rows"]) == 2


class TestKilled:
    def test_the_next_worker_begins_after_what_killed_it(self, here: Here):
        here.worker.dies = {3}
        result = measure()
        assert result.complete
        assert [row.sizes["n"] for row in result.rows] == [n for n in range(here.worker.total) if n != 3]
        sweeps = [request["stages"] for request in here.worker.requests if "stages" in request]
        assert sweeps[1] == sweeps[0][4:]
        what = sweeps[0][3]["what"]
        assert any(note.startswith(f"{what}: ") and "SIGKILL" in note for note in result.notes)
        assert result.calibration

    def test_the_last_stage(self, here: Here):
        measure()
        last = here.worker.total - 1
        here.worker.dies = {last}
        result = measure()
        assert len(result.rows) == last
        assert result.calibration

    def test_so_often_it_is_given_up(self, here: Here):
        here.worker.dies = {2, 3, 5, 6}
        result = measure()
        assert (result.complete, result.interrupted) == (False, False)
        assert [row.sizes["n"] for row in result.rows] == [0, 1, 4]
        assert f"{here.worker.total - 6} microbenchmarks were left out after that" in result.notes
        assert result.calibration == ""

    def test_after_enough_networks_there_is_still_a_fit(self, here: Here):
        first = networks_begin(here)
        here.worker.total = 0
        here.worker.dies = {0, 1, first + 4}
        result = measure(quick=True)
        assert not result.complete
        assert result.calibration

    def test_one_that_cannot_even_start(self, here: Here):
        here.worker.dies_before = MOST_DEATHS
        result = measure()
        assert (result.complete, result.rows, result.calibration) == (False, (), "")
        assert sum("ImportError" in note for note in result.notes) == MOST_DEATHS
        assert files(here.path.parent) == []

    def test_the_fit(self, here: Here):
        here.worker.fitted = ChildDiedError("the fit was killed by SIGKILL, as the system does where memory is used up.")
        result = measure()
        assert len(result.rows) == here.worker.total
        assert result.calibration == ""
        assert any("the fit was killed by SIGKILL" in note for note in result.notes)
        assert files(here.path.parent) == []

    def test_the_first_look(self, here: Here, monkeypatch: pytest.MonkeyPatch):
        here.worker.seen = {}
        monkeypatch.setattr(here.worker, "_answers", lambda request: (_ for _ in ()).throw(ChildDiedError("the look failed.")))
        with pytest.raises(ChildDiedError, match="the look failed"):
            measure()


class TestRefused:
    def test_a_folder_that_cannot_be_written(self, here: Here, tmp_path: Path):
        pytest.importorskip("torch")
        (tmp_path / "config").write_text("a file where the folder would be")
        with pytest.raises(InputError, match="cannot be written"):
            measure()
        done = CliRunner().invoke(main, ["measure", "--quick"])
        assert done.exit_code == 2
        assert "the calibration of this machine cannot be written to" in done.stderr
        assert "GPUWISE_CONFIG_DIR" in done.stderr
        assert here.worker.requests == [], "nothing was measured first"
        assert files(tmp_path) == ["config"]

    def test_a_disk_that_takes_nothing(self, here: Here, monkeypatch: pytest.MonkeyPatch):
        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_room)
        with pytest.raises(InputError, match="No space left on device"):
            measure()
        assert here.worker.requests == []
        assert files(here.path.parent) == []

    def test_processors_that_others_use_up(self, here: Here):
        here.loads = [QUIET, QUIET, FULL_OF_OTHERS]
        with pytest.raises(UnsupportedError, match="other programs use practically all") as caught:
            measure()
        assert caught.value.ways_out
        assert here.worker.requests == []
        assert files(here.path.parent) == []

    def test_too_little_memory(self, here: Here):
        here.detected = replace(here.detected, memory=Memory(8 * 2**30, 300 * 2**20))
        with pytest.raises(UnsupportedError, match="only 300 MiB of memory are free; the sweep needs 1024 MiB"):
            measure()
        assert here.worker.requests == []
        here.detected = replace(here.detected, memory=Memory())  # not told
        assert measure().complete

    def test_a_gpu_that_pytorch_does_not_see(self, here: Here):
        pytest.importorskip("torch")
        here.machine = replace(here.machine, chip=Catalog().chips["rtx-4090"])
        with pytest.raises(UnsupportedError, match=r"has a GPU .* but this build of PyTorch sees none"):
            measure()
        done = CliRunner().invoke(main, ["measure"])
        assert done.exit_code == 2
        assert "pytorch.org" in done.stderr
        assert here.worker.requests == [{}, {}]
        assert files(here.path.parent) == []


class TestNotWritten:
    def test_where_others_used_the_machine_up_meanwhile(self, here: Here):
        here.loads = [QUIET, QUIET, QUIET, FULL_OF_OTHERS]
        result = measure()
        assert result.calibration == ""
        assert any(note.startswith("nothing was written") and "while it is idle" in note for note in result.notes)
        assert len(result.rows) == here.worker.total
        assert files(here.path.parent) == []

    def test_and_an_earlier_measurement_stays(self, here: Here):
        measure()
        before = here.path.read_bytes()
        here.loads = [QUIET, QUIET, QUIET, FULL_OF_OTHERS]
        assert measure(quick=True).calibration == ""
        assert here.path.read_bytes() == before

    @pytest.mark.parametrize("earlier", [False, True])
    def test_where_writing_fails_in_the_middle(self, here: Here, earlier: bool, monkeypatch: pytest.MonkeyPatch):
        if earlier:
            measure()
        before = here.path.read_bytes() if earlier else None
        replace_file, calls = os.replace, []

        def second_fails(*arguments):
            calls.append(arguments)
            if len(calls) > 1:  # the first is the trial before anything is measured
                raise OSError(28, "No space left on device")
            replace_file(*arguments)

        monkeypatch.setattr(os, "replace", second_fails)
        with pytest.raises(InputError, match="cannot be written"):
            measure()
        assert len(calls) == 2
        assert files(here.path.parent) == ([here.path.name] if earlier else [])
        assert not earlier or here.path.read_bytes() == before
