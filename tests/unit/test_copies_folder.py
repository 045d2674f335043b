"""Copies on a mount of an object store: complete by the manifest, whatever the mount loses."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from tests.fault.checkpoint_faults import Quick, flipped, same, sample_state, truncated
from tests.mounts import Faulty, Strict, watched

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import CheckpointStore, pack
from gpuwise.runtime.copies.copier import Copied, Copier, CopyFailure
from gpuwise.runtime.copies.copy_folder import CopyFolder
from gpuwise.runtime.copies.machines import Machines
from gpuwise.runtime.copies.mount import write_new
from gpuwise.runtime.copies.records import newest_record, take_over
from gpuwise.runtime.copies.restore import Restore
from gpuwise.runtime.ranks import ALONE

FILES = ("model.safetensors", "optimizer.safetensors", "rest.safetensors", "state.json", "manifest.json")


class Machine:
    """A machine with a run's folder, and the folder of copies."""

    def __init__(self, root, name="here", *, files=None, keep=2):
        self.run, self.path = root / name, root / "bucket"
        self.store = CheckpointStore(self.run / "checkpoints", files=Quick())
        self.copy = CopyFolder(self.path, keep=keep, files=files or Strict())
        self.copier = Copier(self.store, self.copy, self.run, Machines(ALONE))

    def save(self, step, *, best=False):
        self.store.write(pack(sample_state(step)), step=step, meta={"seed": step}, best=best)

    def copied(self, step):
        """The outcomes of the copy of a step."""
        self.copier.begin(step)
        assert self.copier.work.wait()
        return self.copier.poll()

    def steps(self):
        return [checkpoint.step for checkpoint in self.copy.complete()]

    def back(self, step=0):
        """What is copied back to this machine, and the notes."""
        copied, notes = Restore(self.copy, self.store, ALONE).newer_than(step)
        latest = self.store.latest()
        assert copied == (latest is not None and latest.step > step)
        return (latest.step if latest else 0), [note.kind for note in notes]


@pytest.fixture
def here(tmp_path):
    return Machine(tmp_path)


def test_another_machine_gets_the_same_bytes(here, tmp_path):
    here.save(1)
    (outcome,) = here.copied(1)
    assert isinstance(outcome, Copied)
    there = Machine(tmp_path, "there")
    assert there.back() == (1, ["copied-back"])
    for name in FILES:
        path = f"checkpoints/step-00000001/{name}"
        assert (there.run / path).read_bytes() == (here.run / path).read_bytes() == (here.path / path).read_bytes()
    assert same(there.store.latest().load(), sample_state(1))


def test_nothing_but_new_files_is_written_and_the_manifest_is_last(here, monkeypatch):
    def unknown(fd):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "fsync", unknown)
    (here.run).mkdir()
    (here.run / "run.json").write_text("{}")
    with watched(here.path) as meddled:
        for step in (1, 2, 3, 4):
            here.save(step)
            assert isinstance(here.copied(step)[0], Copied)
    assert not meddled
    closed = here.copy.files.closed
    assert closed[: len(closed) // 4] == [*sorted(FILES[:-1]), "run.json", "record.json", "manifest.json"]
    assert here.steps() == [4, 3]


def test_an_error_of_fsync_that_is_one_counts(here, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    here.save(1)
    monkeypatch.setattr(os, "fsync", broken)
    assert here.copied(1) == [CopyFailure(1, "Input/output error")]


def test_as_many_are_kept_as_asked_and_what_was_cut_short_goes(tmp_path):
    here = Machine(tmp_path, keep=3)
    for step in range(1, 7):
        here.save(step)
        here.copied(step)
        if step == 2:
            (here.path / "checkpoints/step-00000002/manifest.json").unlink()
    assert here.steps() == [6, 5, 4]
    assert sorted(os.listdir(here.path / "checkpoints")) == [f"step-{step:08d}" for step in (4, 5, 6)]


def test_the_best_stays_and_is_copied_if_it_was_skipped(here):
    for step in (1, 2, 3, 4):
        here.save(step, best=step == 2)
    here.copied(4)
    assert here.steps() == [4, 2]
    for step in (5, 6, 7):
        here.save(step)
        here.copied(step)
    assert here.steps() == [7, 6, 2]


@pytest.mark.parametrize("fault", ["loses bytes", "drops", "fails"])
@pytest.mark.parametrize("name", [*FILES, "record.json"])
def test_a_file_that_does_not_arrive_leaves_no_complete_copy(fault, name, here, tmp_path):
    here.save(1)
    here.copied(1)
    here.save(2)
    here.copy.files = Faulty(fault, name)
    (outcome,) = here.copied(2)
    assert isinstance(outcome, CopyFailure)
    there = Machine(tmp_path, "there")
    # A manifest whose close failed may have arrived all the same: it was the last file, so that all is there.
    arrived = name == "manifest.json" and fault == "fails"
    nothing = (name, fault) == ("model.safetensors", "drops")  # of step 2: it was the first file
    passed_over = [] if arrived or nothing else ["incomplete-copies"]
    expected = (2 if arrived else 1, [*passed_over, "copied-back"])
    assert there.back() == expected


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flipped, truncated, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_newest_one_that_is_damaged_is_passed_over(name, damage, here, tmp_path):
    for step in (1, 2):
        here.save(step)
        here.copied(step)
    damage(here.path / "checkpoints/step-00000002" / name)
    step, kinds = Machine(tmp_path, "there").back()
    assert step == 1
    assert kinds in (["incomplete-copies", "copied-back"], ["damaged-checkpoints", "copied-back"])


def test_where_all_are_damaged_it_is_an_error_and_where_none_is_complete_the_run_begins(here, tmp_path):
    here.save(1)
    here.copied(1)
    flipped(here.path / "checkpoints/step-00000001/model.safetensors")
    there = Machine(tmp_path, "there")
    with pytest.raises(FileFormatError, match=r"all checkpoints in .* are damaged: step-00000001 .the checksum"):
        there.back()
    assert not list(there.store.folder.iterdir())  # no half of it is left
    (here.path / "checkpoints/step-00000001/manifest.json").unlink()
    assert there.back() == (0, ["incomplete-copies"])


def test_where_the_own_folder_has_one_damaged_copies_are_passed_over(here, tmp_path):
    there = Machine(tmp_path, "there")
    there.save(1)
    here.save(2)
    here.copied(2)
    flipped(here.path / "checkpoints/step-00000002/model.safetensors")
    assert there.back(1) == (1, ["damaged-checkpoints"])


def test_the_own_folder_wins_where_it_is_as_new(here, tmp_path):
    here.save(2)
    here.copied(2)
    there = Machine(tmp_path, "there")
    there.save(2)
    assert there.back(2) == (2, [])
    there.save(3)
    assert there.back(3) == (3, [])


def test_what_is_there_is_not_copied_again(here):
    here.save(1)
    assert here.copied(1)[0].copy_s > 0
    before = len(here.copy.files.closed)
    assert here.copied(1)[0].copy_s == 0
    assert len(here.copy.files.closed) == before


def test_another_checkpoint_of_the_same_step_is_replaced(here, tmp_path):
    here.save(1)
    here.copied(1)
    here.store.write(pack(sample_state(9)), step=1)
    assert here.copied(1)[0].copy_s > 0
    there = Machine(tmp_path, "there")
    assert there.back()[0] == 1
    assert same(there.store.latest().load(), sample_state(9))


def test_a_mount_that_removes_nothing_is_told_of_once(here):
    class Keeps(Strict):
        def remove(self, path):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    here.copy.files = Keeps()
    for step in (1, 2, 3):
        here.save(step)
        assert isinstance(here.copied(step)[0], Copied)
    assert here.steps() == [3, 2, 1]
    assert "Operation not permitted" in here.copy.unremovable


def test_a_copy_slower_than_the_saves_takes_the_newest_next_and_its_source_stays(here):
    class Slow(Strict):
        """Three more checkpoints are saved while the first file is uploaded."""

        def uploaded(self, path):
            if self.closed == ["model.safetensors"]:
                for step in (2, 3, 4):
                    here.save(step)
                    here.store.prune()
                    here.copier.begin(step)

    here.copy.files = Slow()
    here.save(1)
    here.store.in_use.add(1)
    outcomes = here.copied(1)
    assert [outcome.step for outcome in outcomes] == [1, 4]
    assert all(isinstance(outcome, Copied) for outcome in outcomes)


def test_a_source_in_use_is_not_pruned(here):
    for step in (1, 2):
        here.save(step)
    here.store.in_use.add(1)
    for step in (3, 4):
        here.save(step)
    assert [checkpoint.step for checkpoint in here.store.all()] == [4, 3, 1]
    here.store.in_use.clear()
    here.store.prune()
    assert [checkpoint.step for checkpoint in here.store.all()] == [4, 3]


def test_time_that_is_over_gives_the_copy_up_and_the_one_before_stays(here, tmp_path):
    class Endless(Strict):
        """Uploads the next file when the test says so."""

        def uploaded(self, path):
            if path.parent.name == "step-00000002" and path.name == "model.safetensors":
                here.copier.work.give_up()

    here.copy.files = Endless()
    for step in (1, 2):
        here.save(step)
        outcomes = here.copied(step)
    assert outcomes == [CopyFailure(2, "there was no more time")]
    assert Machine(tmp_path, "there").back()[0] == 1


def test_a_deadline_that_has_passed_is_not_waited_for(here):
    here.save(1)
    goes_on = threading.Event()
    here.copier.work.begin(goes_on.wait)
    here.copier.begin(1)
    assert not here.copier.work.wait(until_s=0.0)
    goes_on.set()
    assert here.copier.work.wait()
    assert here.steps() == []  # nothing was begun any more


def test_a_damaged_source_is_no_complete_copy(here):
    here.save(1)
    flipped(here.store.folder / "step-00000001/model.safetensors")
    assert here.copied(1) == [CopyFailure(1, "the checksum of model.safetensors is wrong")]
    assert here.steps() == []


def test_records_keep_the_log_and_the_newest_complete_one_is_taken_over(here, tmp_path):
    here.run.mkdir()
    here.save(1)
    for text in ("one\n", "one\ntwo\n", "one\ntwo\nthree\n"):
        (here.run / "log.jsonl").write_text(text)
        (here.run / "run.json").write_text("{}")
        (here.run / "state.json").write_text('{"state": "running"}')
        here.copier.begin_record(1)
        here.copier.work.wait()
    assert sorted(os.listdir(here.path / "records")) == ["00000002", "00000003"]
    assert (here.path / "state.json").read_text() == '{"state": "running"}'
    truncated(here.path / "records/00000003/log.jsonl")
    record = newest_record(here.copy.files, here.path)
    assert record.name == "00000002"
    there = tmp_path / "there"
    there.mkdir()
    (there / "log.jsonl").write_text("one\n")
    take_over(record, there)
    assert (there / "log.jsonl").read_text() == "one\ntwo\n"
    assert (there / "run.json").read_text() == "{}"
    (there / "log.jsonl").write_text("one\ntwo\nanother\n")
    take_over(record, there)
    assert (there / "log.jsonl").read_text() == "one\ntwo\nanother\n"


def test_a_log_that_is_a_link_is_left_out(here, tmp_path):
    here.run.mkdir()
    (tmp_path / "secret").write_text("secret")
    (here.run / "log.jsonl").symlink_to(tmp_path / "secret")
    here.save(1)
    assert isinstance(here.copied(1)[0], Copied)
    assert os.listdir(here.path / "records/00000001") == ["record.json"]


def test_a_small_file_is_read_back(tmp_path):
    with pytest.raises(OSError, match="cannot be read back"):
        write_new(Faulty("flips", "x"), tmp_path / "x", b"abc")
