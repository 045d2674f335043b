"""The folder of a run: whose it is, who can read it, and what of it is somebody else's."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.training_samples import toy, train, training

from gpuwise.errors import FileFormatError, InputError
from gpuwise.runtime.checkpoint import CheckpointStore, manifest
from gpuwise.runtime.checkpoint.manifest import _checksum


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- who can read it


def test_a_runs_folder_is_its_owners_alone(tmp_path, umask):
    train(toy(), folder=tmp_path / "runs" / "a", steps=2)
    assert mode(tmp_path / "runs" / "a") == 0o700
    assert mode(tmp_path / "runs") == 0o755


@pytest.mark.parametrize(("parent", "made"), [(0o2775, 0o2750), (0o775, 0o750), (0o1777, 0o700), (0o755, 0o700)])
def test_in_a_folder_that_a_group_shares_the_group_keeps_what_the_umask_leaves(parent, made, tmp_path, umask):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(parent)
    train(toy(), folder=tmp_path / "shared" / "a", steps=2)
    assert mode(tmp_path / "shared" / "a") == made


def test_a_folder_that_is_there_keeps_its_mode_and_one_open_to_everybody_is_told(tmp_path):
    for given, answer in ((0o755, 0), (0o777, 1)):
        folder = tmp_path / oct(given)
        folder.mkdir()
        folder.chmod(given)
        result = train(toy(), folder=folder, steps=2)
        assert mode(folder) == given
        assert sum("everybody on this machine can write" in note for note in result.notes) == answer


# --- two runs


def test_who_removes_the_lock_file_does_not_let_another_run_in(tmp_path):
    run = training(toy(), folder=tmp_path, steps=4)
    for step in run:
        if step.step == 2:
            (tmp_path / "lock").unlink()
            with pytest.raises(InputError, match="in use by another run"):
                train(toy(), folder=tmp_path, steps=4)
    assert [checkpoint.step for checkpoint in CheckpointStore(tmp_path / "checkpoints").all()] == [4]


# --- somebody's own files


def checkpoints(folder: Path) -> Path:
    """Of a run with checkpoints of steps 4 and 6."""
    for steps in (4, 6):
        train(toy(), folder=folder, steps=steps)
    return folder / "checkpoints"


def test_notes_in_a_checkpoint_that_is_removed_stay_and_it_is_told(tmp_path):
    kept = checkpoints(tmp_path)
    (kept / "step-00000004" / "notes.txt").write_text("the good one")
    (kept / "step-00000004" / "plots").mkdir()
    (kept / "step-00000004" / "plots" / "a.txt").write_text("curve")
    (kept / "step-00000004" / "mine.safetensors").write_text("not of gpuwise")
    run = training(toy(), folder=tmp_path, steps=8)
    run.run()
    assert sorted(path.name for path in kept.iterdir()) == ["step-00000004.kept", "step-00000006", "step-00000008"]
    own = kept / "step-00000004.kept"
    assert sorted(path.name for path in own.iterdir()) == ["mine.safetensors", "notes.txt", "plots"]
    assert (own / "plots" / "a.txt").read_text() == "curve"
    log = (tmp_path / "log.jsonl").read_text()
    assert "mine.safetensors, notes.txt, plots in step-00000004 is no part of a checkpoint, and stays in" in log


def test_files_beside_a_checkpoints_own_do_not_damage_it(tmp_path):
    kept = checkpoints(tmp_path)
    (kept / "step-00000006" / "notes.txt").write_text("x")
    (kept / "backup").mkdir()
    (kept / "step-00000099").mkdir()  # somebody's, and empty
    result = train(toy(), folder=tmp_path, steps=7)
    assert result.resumed_from == 6
    assert not any("damaged" in note for note in result.notes)
    assert {"backup", "step-00000099"} <= {path.name for path in kept.iterdir()}


def test_a_folder_in_the_way_of_a_checkpoint_is_put_beside_it(tmp_path):
    kept = checkpoints(tmp_path)
    (kept / "step-00000007").mkdir()
    (kept / "step-00000007" / "mine.txt").write_text("x")
    assert train(toy(), folder=tmp_path, steps=7).unsaved == ()
    assert (kept / "step-00000007.kept" / "mine.txt").read_text() == "x"
    assert CheckpointStore(kept).latest().step == 7


def test_what_a_killed_process_had_begun_to_remove_keeps_what_is_not_gpuwises(tmp_path):
    kept = checkpoints(tmp_path)
    gone = kept / ".step-00000002.123.gone"
    gone.mkdir()
    (gone / "optimizer.safetensors").write_bytes(b"half")
    (gone / "notes.txt").write_text("x")
    CheckpointStore(kept).remove_leftovers()
    assert not gone.exists()
    assert [path.name for path in (kept / "step-00000002.kept").iterdir()] == ["notes.txt"]


# --- numbers


HUGE = ["1" + "0" * 400, "1" * 10_000, "-" + "9" * 30]


def replaced(path: Path, name: str, number: str) -> None:
    text = path.read_text()
    before = json.loads(text)[name]
    path.write_text(text.replace(f'"{name}": {before}', f'"{name}": {number}'))
    assert number in path.read_text()


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("name", ["steps", "seed", "global_batch", "version"])
def test_numbers_of_any_length_in_run_json_are_damage(name, number, tmp_path):
    train(toy(), folder=tmp_path, steps=2)
    replaced(tmp_path / "run.json", name, number)
    with pytest.raises(FileFormatError, match=r"run\.json"):
        train(toy(), folder=tmp_path, steps=4)


def test_a_run_of_less_than_no_steps_is_damage(tmp_path):
    train(toy(), folder=tmp_path, steps=2)
    replaced(tmp_path / "run.json", "steps", "-3")
    with pytest.raises(FileFormatError, match=r"run\.json is damaged"):
        train(toy(), folder=tmp_path, steps=4)


def rewritten(path: Path, change: Any) -> None:
    """A manifest whose checksum is right, by somebody who knows how."""
    content = json.loads(path.read_bytes())["content"]
    change(content)
    path.write_bytes(manifest.dump_json({"checksum": _checksum(content), "content": content}))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(step=10**400),
        lambda content: content["files"]["state.json"].update(nbytes=10**400),
        lambda content: content["meta"].update(x=10**4000),
        lambda content: content.update(version=10**400),
    ],
)
def test_numbers_of_any_length_in_a_manifest_are_damage(change, tmp_path):
    kept = checkpoints(tmp_path)
    rewritten(kept / "step-00000006" / "manifest.json", change)
    result = train(toy(), folder=tmp_path, steps=8)
    assert result.resumed_from == 4
    assert any("step-00000006 (" in note for note in result.notes)


def test_a_manifest_of_nothing_but_digits_is_refused_at_once(tmp_path):
    kept = checkpoints(tmp_path)
    (kept / "step-00000006" / "manifest.json").write_text('{"content": ' + "1" * 10**6 + "}")
    assert train(toy(), folder=tmp_path, steps=8).resumed_from == 4


def test_a_meta_of_another_shape_is_another_jobs(tmp_path):
    kept = checkpoints(tmp_path)
    rewritten(kept / "step-00000006" / "manifest.json", lambda content: content["meta"].update(run=5))
    with pytest.raises(Exception, match="is of another job than the run"):
        train(toy(), folder=tmp_path, steps=8)


def test_a_log_that_makes_no_sense_costs_the_page_alone(tmp_path):
    train(toy(), folder=tmp_path, steps=2)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"record": "step", "time": 5, "step": "x", "loss": {}, "samples": 1e999}\n{"record": "header"}\n')
    result = train(toy(), folder=tmp_path, steps=4)
    assert result.steps == 4
    assert not result.unsaved or "records that make no sense" in result.unsaved[0]
