"""Checkpoints are complete or absent: whatever ends a save, the one before it or the new one comes back, bit for bit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.fault.checkpoint_faults import (
    DeadError,
    Ends,
    Injector,
    PowerCut,
    Quick,
    Refuses,
    RemovesFirst,
    WritesInPlace,
    check_nothing_lost,
    emptied,
    flipped,
    same,
    sample_state,
    save,
    truncated,
)

from gpuwise.errors import FileFormatError, InputError
from gpuwise.runtime.checkpoint import CheckpointStore, Files, Saved, SaveFailure, Saver, checkpoint, pack

ENDS = {
    "killed": Ends,
    "power cut, names reach the disk first": lambda at: PowerCut(at, keeps_names=True),
    "power cut, names are lost": lambda at: PowerCut(at, keeps_names=False),
}


def end_everywhere(root: Path, make_files, *, step: int = 4, store: type[CheckpointStore] = CheckpointStore) -> int:
    """Ends a save before each of its system calls in turn, then after the last. Returns how many there were.

    There are three checkpoints before, so that the save also removes one.
    """
    for at in range(1, 1000):
        folder = root / str(at)
        for earlier in (1, 2, 3):
            save(folder, Quick(), step=earlier, seed=earlier)
        files = make_files(at)
        try:
            save(folder, files, step=step, seed=4, store=store)
            saved = True
        except DeadError:
            saved = False
        if isinstance(files, PowerCut):
            files.lose()
        check_nothing_lost(folder, before=3, saving=4, saved=saved)
        if saved:
            return at - 1
    raise AssertionError("a save without an end")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("step", [4, 3], ids=["a new step", "a step that is there"])
def test_a_save_ended_at_every_system_call_loses_nothing(end, step, tmp_path):
    assert end_everywhere(tmp_path, ENDS[end], step=step) > 25


def test_a_save_killed_by_the_system_at_every_call_loses_nothing(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-m", "tests.fault.checkpoint_faults", str(tmp_path)],
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    folders = sorted(tmp_path.iterdir())
    assert len(folders) > 25
    for folder in folders:
        check_nothing_lost(folder, before=2, saving=3, saved=folder.name.endswith("-saved"))


def test_what_a_save_does_in_which_order(tmp_path):
    """Files, their contents synced, the folder, the name, the folder of the names; only then anything is removed."""
    for step in (1, 2):
        save(tmp_path, Quick(), step=step, seed=step)
    files = Injector()
    save(tmp_path, files, step=3, seed=3)
    written = ["create", "write", "sync", "close"] * 5  # model, optimizer, rest, state.json, manifest.json
    assert files.calls[: len(written) + 4] == ["make_folder", *written, "sync_folder", "rename", "sync_folder"]
    assert set(files.calls[len(written) + 4 :]) == {"names", "rename", "remove", "remove_folder"}


# The checks themselves: each of these has a fault planted, and must be caught.


class ForgetsContents(PowerCut):
    def sync(self, fd):
        pass


class ForgetsNames(PowerCut):
    def sync_folder(self, path):
        pass


@pytest.mark.parametrize(
    ("make_files", "store"),
    [
        (lambda at: ForgetsContents(at, keeps_names=True), CheckpointStore),
        (lambda at: ForgetsNames(at, keeps_names=False), CheckpointStore),
        (Ends, RemovesFirst),
        (Ends, WritesInPlace),
    ],
)
def test_a_planted_fault_is_caught(make_files, store, tmp_path):
    with pytest.raises(AssertionError):
        end_everywhere(tmp_path, make_files, store=store)


def test_an_injector_without_a_fault_changes_nothing(tmp_path):
    save(tmp_path, Injector(), step=1, seed=1)
    check_nothing_lost(tmp_path, before=0, saving=1, saved=True)


# Damage to what was complete.


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_a_link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replaced_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def swapped(path: Path) -> None:
    """The file of the checkpoint before: whole, and not of this one."""
    path.write_bytes((path.parent.parent / "step-00000001" / path.name).read_bytes())


NAMES = ("model.safetensors", "optimizer.safetensors", "rest.safetensors", "state.json", "manifest.json")
DAMAGES = (
    Path.unlink,
    truncated,
    emptied,
    longer,
    flipped,
    swapped,
    replaced_by_a_folder,
    replaced_by_a_link,
    replaced_by_a_pipe,
)


@pytest.fixture
def two(tmp_path):
    for step in (1, 2):
        save(tmp_path, Quick(), step=step, seed=step)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_noticed_and_the_older_checkpoint_used(name, damage, two):
    damage(two / "step-00000002" / name)
    store = CheckpointStore(two)
    latest = store.latest()
    assert latest.step == 1
    assert same(latest.load(), sample_state(1))
    assert len(store.notes) == 1
    assert "step-00000002" in store.notes[0].text
    assert name in store.notes[0].text
    with pytest.raises(FileFormatError, match=r"step-00000002 is damaged"):
        store.all()[0].load()


@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_counts(name, two):
    path = two / "step-00000002" / name
    whole = path.read_bytes()
    for at in range(0, len(whole), 1 + len(whole) // 60):
        flipped(path, at, bit=at % 8)
        assert CheckpointStore(two).latest().step == 1, f"byte {at}: {whole[at : at + 1]!r}"
        path.write_bytes(whole)
    assert CheckpointStore(two).latest().step == 2


def test_a_store_that_does_not_verify_is_caught(two, monkeypatch):
    """The planted fault of the tests above."""
    monkeypatch.setattr(checkpoint, "check", lambda path, digest: None)
    flipped(two / "step-00000002" / "rest.safetensors", at=-1)
    assert CheckpointStore(two).latest().step == 2


def test_all_damaged_is_an_error_that_names_them(two):
    emptied(two / "step-00000001" / "manifest.json")
    flipped(two / "step-00000002" / "model.safetensors")
    with pytest.raises(FileFormatError, match=r"step-00000002 \(the checksum of model.*step-00000001 \(the JSON of manifest"):
        CheckpointStore(two).latest()


def test_a_whole_folder_replaced_by_a_link_is_no_checkpoint(two):
    (two / "step-00000002").rename(two / "elsewhere")
    (two / "step-00000002").symlink_to(two / "elsewhere")
    assert CheckpointStore(two).latest().step == 1


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(two):
    flipped(two / "step-00000002" / "model.safetensors")
    save(two, Quick(), step=2, seed=7)
    assert CheckpointStore(two).latest().meta == {"seed": 7}
    assert sorted(path.name for path in two.iterdir()) == ["step-00000001", "step-00000002"]


def test_damaged_checkpoints_are_not_among_those_kept(two):
    truncated(two / "step-00000002" / "model.safetensors")
    save(two, Quick(), step=3, seed=3)
    assert [c.step for c in CheckpointStore(two).all()] == [3, 2, 1]  # 2 is newer than the second whole one
    save(two, Quick(), step=4, seed=4)
    assert [c.step for c in CheckpointStore(two).all()] == [4, 3]


# Disks that refuse.


def saver_of(folder: Path, files: Files) -> Saver:
    return Saver(CheckpointStore(folder, files=files))


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Everything in it; of a folder None."""
    return {path: None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize(("call", "times"), [("make_folder", 1), ("create", 5), ("write", 5), ("sync", 5), ("rename", 1)])
def test_a_disk_that_refuses_costs_that_checkpoint_and_nothing_else(error, call, times, two):
    before = contents(two)
    for at in range(1, times + 1):
        saver = saver_of(two, Refuses(at, error, kinds=(call,)))
        saver.begin(3, sample_state(3))
        (outcome,) = saver.finish()
        assert isinstance(outcome, SaveFailure)
        assert outcome.step == 3
        assert ("the disk is full: it needs" if error in (errno.ENOSPC, errno.EDQUOT) else os.strerror(error)) in outcome.error
        assert "The older ones are still there." in outcome.error
        assert contents(two) == before
    saver = saver_of(two, Quick())
    assert isinstance(saver.save_now(3, sample_state(3)), Saved)
    assert same(CheckpointStore(two).latest().load(), sample_state(3))


def test_a_disk_too_full_to_clean_up_leaves_no_checkpoint(two):
    saver = saver_of(two, Refuses(8))  # everything fails from here on, removing too
    assert isinstance(saver.save_now(3, sample_state(3)), SaveFailure)
    assert [c.step for c in CheckpointStore(two).all()] == [2, 1]
    check_nothing_lost(two, before=2, saving=3, saved=False)
    assert isinstance(saver_of(two, Quick()).save_now(3, sample_state(3)), Saved)


def test_an_attempt_after_one_that_could_not_be_cleaned_up_succeeds(two):
    """The same process, so the same name aside."""
    saver = saver_of(two, Refuses(8))
    saver.save_now(3, sample_state(3))
    saver.store.files = Quick()
    assert isinstance(saver.save_now(3, sample_state(3)), Saved)
    assert [c.step for c in CheckpointStore(two).all()] == [3, 2]


def test_an_old_checkpoint_that_cannot_be_removed_is_a_note(two):
    files = Refuses(1, errno.EACCES, kinds=("remove",))
    outcome = saver_of(two, files).save_now(3, sample_state(3), meta={"seed": 3})
    assert isinstance(outcome, Saved)
    assert "step-00000001 could not be removed" in outcome.notes[0].text
    check_nothing_lost(two, before=2, saving=3, saved=True)


class NearlyFull(Quick):
    def __init__(self, free_bytes: int):
        self.free = free_bytes

    def free_bytes(self, folder):
        return self.free


def test_a_nearly_full_disk_is_noticed_before_the_save(two):
    saver = saver_of(two, NearlyFull(10_000_000))
    saver.begin(3, sample_state(3))
    (outcome,) = saver.finish()
    assert isinstance(outcome, SaveFailure)
    assert "the disk is nearly full: a checkpoint needs 64 MiB, 9.54 MiB are free" in outcome.error
    assert not any(path.name.startswith(".") for path in two.iterdir())


class Gated(Quick):
    """A disk so slow that it waits to be told."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def create(self, path):
        self.begun.set()
        assert self.go.wait(120)
        return super().create(path)


def test_training_goes_on_while_a_slow_disk_writes(tmp_path):
    files = Gated()
    saver, state = saver_of(tmp_path, files), sample_state(1)
    saver.begin(1, state)
    assert files.begun.wait(120)
    assert saver.poll() == ()
    with torch.no_grad():
        state["model"]["head.weight"].zero_()
    state["rest"]["numpy"][:] = 0
    state["plain"]["epoch"] = 99
    files.go.set()
    (outcome,) = saver.finish()
    assert isinstance(outcome, Saved)
    assert same(CheckpointStore(tmp_path).latest().load(), sample_state(1))


def test_a_second_save_waits_for_the_first(tmp_path):
    files = Gated()
    saver = saver_of(tmp_path, files)
    saver.begin(1, sample_state(1))
    second = threading.Thread(target=saver.begin, args=(2, sample_state(2)))
    second.start()
    second.join(0.05)
    assert second.is_alive()
    files.go.set()
    second.join(120)
    assert [outcome.step for outcome in saver.finish()] == [1, 2]
    assert same(CheckpointStore(tmp_path).all()[1].load(), sample_state(1))


def test_a_clock_that_jumps_changes_nothing(two, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    save(two, Quick(), step=3, seed=3)
    for path in (two / "step-00000003").iterdir():
        os.utime(path, (0, 0))
    assert CheckpointStore(two).latest().step == 3


def test_a_state_that_cannot_be_saved_is_refused_before_anything_is_written(two):
    with pytest.raises(InputError, match=r"rest.0 is a object, which cannot be saved"):
        saver_of(two, Quick()).begin(3, {"rest": [object()]})
    assert [c.step for c in CheckpointStore(two).all()] == [2, 1]


def test_any_other_failure_is_an_outcome_too(two, monkeypatch):
    saver = saver_of(two, Quick())
    monkeypatch.setattr(saver.store, "write", lambda *_, **__: 1 / 0)
    saver.begin(3, sample_state(3))
    (outcome,) = saver.finish()
    assert "no checkpoint of step 3: ZeroDivisionError: division by zero" in outcome.error


def test_leftovers_are_removed_whoever_has_their_writers_number_now(two):
    """The run that opens the store has its folder to itself."""
    leftovers = [
        ".step-00000009.999999999.tmp",
        f".step-00000009.{os.getppid()}.tmp",
        f".step-00000009.{os.getpid()}.tmp",
        ".step-00000008.999999999.gone",
    ]
    for name in leftovers:
        (two / name).mkdir()
        (two / name / "model.safetensors").write_bytes(b"half")
    saver_of(two, Quick())
    assert [path.name for path in two.iterdir() if path.name.startswith(".")] == []


def test_pack_is_what_write_takes(tmp_path):
    written = CheckpointStore(tmp_path).write(pack(sample_state(1)), step=1)
    assert same(written.load(), sample_state(1))
