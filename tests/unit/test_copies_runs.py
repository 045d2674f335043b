"""Runs whose checkpoints are copied elsewhere: what another machine goes on from, and what an end in a hurry leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading

import pytest
from tests.fault.checkpoint_faults import Quick, flipped
from tests.mounts import Strict, watched
from tests.training_samples import toy, train, training

from gpuwise.errors import FileFormatError, InputError, JobError, NotSavedError, RunEndedError
from gpuwise.runtime.checkpoint import CheckpointStore, store
from gpuwise.runtime.copies import run_copies
from gpuwise.runtime.copies.copy_folder import CopyFolder
from gpuwise.runtime.run import training as loop
from gpuwise.runtime.show import read_log


@pytest.fixture(autouse=True)
def _saves_all_the_time(monkeypatch):
    monkeypatch.setattr(store, "Files", Quick)
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 0.0)


@pytest.fixture
def mount(monkeypatch):
    """Puts file layers in place of a run's mount: mount(files)."""

    def put(files):
        monkeypatch.setattr(run_copies, "CopyFolder", lambda path, *, keep: CopyFolder(path, keep=keep, files=files))
        return files

    return put


def stepwise(run, upto):
    """Takes steps, each saved and copied, then leaves the loop. Returns the losses."""
    losses = {}
    for step in run:
        losses[step.step] = step.loss
        run._run.checkpoints.manager._saver._join()
        copier = run._run.copies._copier
        if copier is not None:
            copier.work.wait()
        if step.step == upto:
            break
    return losses


def settings(root, name, **more):
    return {"folder": root / name, "copy_to": root / "bucket", "save_every_s": 1e-9, "steps": 9, **more}


def copied_steps(root):
    return [checkpoint.step for checkpoint in CheckpointStore(root / "bucket/checkpoints").all()]


def test_a_run_goes_on_on_machine_after_machine_to_the_bit(tmp_path, mount):
    mount(Strict())
    whole = stepwise(training(toy(), steps=9, folder=tmp_path / "alone", save_every_s=1e-9), 9)
    losses = {}
    with watched(tmp_path / "bucket") as meddled:
        for number, upto in enumerate((3, 4, 7, 9)):
            run = training(toy(), **settings(tmp_path, f"machine-{number}"))
            before = max(losses, default=0)
            after = stepwise(run, upto)
            assert min(after) == before + 1
            losses |= after
            assert run.result.resumed_from == (before or None)
            assert run.result.checkpoints["copied_step"] == upto
    assert not meddled
    assert losses == whole
    records = read_log(tmp_path / "machine-3/log.jsonl")
    assert [record["step"] for record in records if record["record"] == "resumed"] == [3, 4, 7]  # the log of all machines
    last = max((tmp_path / "bucket/records").iterdir())
    assert "summary" in {record["record"] for record in read_log(last / "log.jsonl")}
    assert (last / "report.html").read_bytes() == (tmp_path / "machine-3/report.html").read_bytes()
    assert json.loads((last / "run.json").read_text())["ended"] == "finished"
    assert copied_steps(tmp_path)[0] == 9
    assert len(copied_steps(tmp_path)) == 2


def test_what_ends_with_the_loop_left_is_copied_whole(tmp_path):
    run = training(toy(), **settings(tmp_path, "here", save_every_s=1000.0))
    assert list(stepwise(run, 5)) == [1, 2, 3, 4, 5]
    assert copied_steps(tmp_path) == [5]


def test_the_own_folder_wins_where_it_is_newer_and_is_copied_at_once(tmp_path):
    stepwise(training(toy(), **settings(tmp_path, "here")), 3)
    shutil.copytree(tmp_path / "bucket", tmp_path / "older")
    stepwise(training(toy(), **settings(tmp_path, "here")), 5)
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "older").rename(tmp_path / "bucket")
    run = training(toy(), **settings(tmp_path, "here"))
    assert min(stepwise(run, 7)) == 6
    assert copied_steps(tmp_path)[0] == 7
    assert not [note for note in run.result.typed_notes if note.kind == "copied-back"]


def test_an_older_own_folder_gives_way(tmp_path):
    stepwise(training(toy(), **settings(tmp_path, "here")), 3)
    shutil.copytree(tmp_path / "here", tmp_path / "old")
    stepwise(training(toy(), **settings(tmp_path, "here")), 6)
    run = training(toy(), **settings(tmp_path, "old"))
    assert min(stepwise(run, 9)) == 7
    records = read_log(tmp_path / "old/log.jsonl")
    assert [record["step"] for record in records if record["record"] == "resumed"] == [3, 6]


def test_a_damaged_own_checkpoint_is_made_up_for_by_the_copy(tmp_path):
    stepwise(training(toy(), **settings(tmp_path, "here")), 4)
    for path in (tmp_path / "here/checkpoints").iterdir():
        flipped(path / "model.safetensors")
    run = training(toy(), **settings(tmp_path, "here"))
    assert min(stepwise(run, 9)) == 5
    for path in [*(tmp_path / "here/checkpoints").iterdir(), *(tmp_path / "bucket/checkpoints").iterdir()]:
        flipped(path / "model.safetensors")
    with pytest.raises(FileFormatError, match="are damaged"):
        train(toy(), **settings(tmp_path, "here", steps=12))


def test_the_newest_copy_is_damaged_and_the_one_before_is_taken(tmp_path):
    whole = stepwise(training(toy(), **settings(tmp_path, "here")), 9)
    flipped(tmp_path / "bucket/checkpoints/step-00000009/model.safetensors")
    run = training(toy(), **settings(tmp_path, "there"))
    losses = stepwise(run, 9)
    assert max(losses) == 9
    assert losses == {step: whole[step] for step in losses}
    (note,) = [note for note in run.result.typed_notes if note.kind == "damaged-checkpoints"]
    assert "step-00000009 (the checksum of model.safetensors is wrong)" in note.text


def test_without_a_record_the_manifest_says_of_what_run_it_is(tmp_path):
    stepwise(training(toy(), **settings(tmp_path, "here")), 3)
    shutil.rmtree(tmp_path / "bucket/records")
    assert min(stepwise(training(toy(), **settings(tmp_path, "there", resume="must")), 9)) == 4


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"seed": 1}, InputError, "has 0 as its seed, not 1"),
        ({"resume": "never"}, InputError, "has copies of a run already"),
        ({"copy_to": "there"}, InputError, "inside each other"),
        ({"copy_to": "there/copies"}, InputError, "inside each other"),
        ({"copy_to": "."}, InputError, "inside each other"),
        ({"copy_to": "a file"}, InputError, "cannot be used: File exists"),
        ({"folder": None}, InputError, "this run has none"),
    ],
)
def test_folders_that_do_not_do(changes, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").write_text("")
    stepwise(training(toy(), **settings(tmp_path, "here")), 3)
    before = sorted(tmp_path.rglob("*"))
    if "copy_to" in changes:
        changes = {"copy_to": tmp_path / changes["copy_to"]}
    with pytest.raises(error, match=words):
        train(toy(), **settings(tmp_path, "there", **changes) | changes)
    assert sorted(tmp_path.rglob("*")) == before


def test_copies_of_another_job_are_refused(tmp_path):
    stepwise(training(toy(), **settings(tmp_path, "here")), 3)
    other = toy(model=lambda: __import__("torch").nn.Linear(4, 3))
    with pytest.raises(JobError, match="holds a run of another job") as refused:
        train(other, **settings(tmp_path, "there"))
    assert refused.value.ways_out == ("another --copy-to FOLDER",)


class Away(Strict):
    """A mount that is not connected for a while."""

    away = True

    def create(self, path):
        if self.away:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return super().create(path)


def test_a_mount_that_is_away_costs_copies_and_is_told_of_once(tmp_path, mount):
    mount(Away())
    result = train(toy(), **settings(tmp_path, "here"))
    assert result.stopped == "finished"
    (unsaved,) = result.unsaved
    assert "the copy of step 9 in " in unsaved
    assert "is not complete: Transport endpoint is not connected; there is none before it." in unsaved
    records = read_log(tmp_path / "here/log.jsonl")
    assert len([record for record in records if record["record"] == "event" and record["kind"] == "copy"]) == 1
    # The next start copies what is missing.
    with pytest.raises(NotSavedError, match="the copy of step 9"):
        train(toy(), **settings(tmp_path, "here"))
    mount(Strict())
    for _ in range(2):
        with pytest.raises(RunEndedError):
            train(toy(), **settings(tmp_path, "here"))
        assert copied_steps(tmp_path) == [9]
        assert len(list((tmp_path / "bucket/records").iterdir())) == 1
    with pytest.raises(RunEndedError):
        train(toy(), **settings(tmp_path, "there"))
    assert not train(toy(), **settings(tmp_path, "there", steps=10)).unsaved
    assert copied_steps(tmp_path) == [10, 9]


def test_a_mount_that_comes_back_gets_the_newest(tmp_path, mount):
    files = mount(Away())
    run = training(toy(), **settings(tmp_path, "here"))
    for step in run:
        files.away = step.step < 5
    assert not run.result.unsaved
    assert run.result.checkpoints["copied_step"] == 9


class Hanging(Strict):
    """A mount that does not come back from uploading a model of this step or a later one until the test ends."""

    def __init__(self, step):
        super().__init__()
        self.step, self.over = f"step-{step:08d}", threading.Event()

    def uploaded(self, path):
        if path.parent.name >= self.step and path.name == "model.safetensors":
            self.over.wait()


def test_an_end_in_a_hurry_names_the_copy_that_stands(tmp_path, mount, monkeypatch):
    """A notice leaves seconds, and the mount hangs: the copy before stands, and another machine goes on from that."""
    files = mount(Hanging(5))
    run = training(toy(), **settings(tmp_path, "here", time_limit_s=3600.0))
    try:
        for step in run:
            run._run.checkpoints.manager._saver._join()
            run._run.copies._copier.work.wait()  # of the checkpoint two steps before
            if step.step == 6:
                monkeypatch.setattr(run._run.stop, "left_s", lambda now_s: 0.01)
                break
        (unsaved,) = run.result.unsaved
        assert "the copy of step 6 in " in unsaved
        assert "is not complete: there was no more time; the one of step 4 is." in unsaved
        shutil.copytree(tmp_path / "bucket", tmp_path / "seen elsewhere")
    finally:
        files.over.set()
    mount(Strict())
    there = training(toy(), **settings(tmp_path, "there", copy_to=tmp_path / "seen elsewhere"))
    assert min(stepwise(there, 9)) == 5


def test_time_for_the_copy_is_left_before_a_deadline(tmp_path):
    run = training(toy(), **settings(tmp_path, "here", time_limit_s=3600.0))
    for step in run:
        if step.step == 5:
            run._run.copies._copier.work.wait()
            run._run.copies._copier.copy_s = 3000.0  # 1.5 times this is more than an hour
    assert run.result.stopped == "time limit"
    assert run.result.steps in (5, 6)
    assert run.result.checkpoints["copied_step"] == run.result.steps


def test_a_run_that_fails_has_its_last_checkpoint_copied(tmp_path):
    def fails(model, batch):
        fails.calls += 1
        if fails.calls > 8:  # two micro-batches a step
            raise ValueError("a bad day")
        return toy().loss(model, batch)

    fails.calls = 0
    with pytest.raises(JobError, match="a bad day"):
        train(toy(loss=fails), **settings(tmp_path, "here"))
    newest = CheckpointStore(tmp_path / "here/checkpoints").all()[0].step
    assert copied_steps(tmp_path)[0] == newest


def test_a_hanging_mount_does_not_hold_the_training_up(tmp_path, mount):
    files = mount(Hanging(1))
    run = training(toy(), **settings(tmp_path, "here"))
    try:
        for step in run:
            run._run.checkpoints.manager._saver._join()
            if step.step == 8:
                hangs = run._run.copies._copier.work.busy
                files.over.set()
    finally:
        files.over.set()
    assert hangs
    assert run.result.checkpoints["copied_step"] == 9
    assert not run.result.unsaved


def test_a_run_without_copies_does_nothing_of_it(tmp_path):
    result = train(toy(), folder=tmp_path / "here", steps=3)
    assert "copied_to" not in result.checkpoints
    assert "copies" not in {thread.name for thread in threading.enumerate()}
