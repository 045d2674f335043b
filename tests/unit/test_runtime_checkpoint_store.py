"""The checkpoints of a run: which are kept, found and refused; and saving beside the training."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from tests.fault.checkpoint_faults import Quick, same, sample_state

from gpuwise.errors import FileFormatError, InputError
from gpuwise.notes import Note
from gpuwise.runtime.checkpoint import CheckpointStore, Saved, SaveFailure, Saver, manifest, pack, snapshot
from gpuwise.runtime.checkpoint.snapshot import Snapshot


def write(store, *steps, best=()):
    for step in steps:
        store.write(pack(sample_state(step)), step=step, meta={"seed": step}, best=step in best)


def steps(store):
    return [checkpoint.step for checkpoint in store.all()]


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run" / "checkpoints", files=Quick())


def test_nothing_there_is_no_checkpoint(store):
    assert store.all() == []
    assert store.latest() is None
    assert store.best() is None
    assert not store.folder.exists()


def test_a_checkpoint_is_a_folder_of_these_files(store):
    write(store, 100)
    folder = store.folder / "step-00000100"
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "rest.safetensors",
        "state.json",
    ]
    content = json.loads((folder / "manifest.json").read_bytes())["content"]
    assert content["format"] == "gpuwise-checkpoint"
    assert content["step"] == 100
    assert content["meta"] == {"seed": 100}
    latest = store.latest()
    assert latest.manifest.nbytes == sum(p.stat().st_size for p in folder.iterdir()) - (folder / "manifest.json").stat().st_size
    assert same(latest.load(), sample_state(100))


def test_the_newest_and_the_best_are_kept(store):
    write(store, 1, 2, 3, 4, 5, best=(1, 2))
    assert steps(store) == [5, 4, 2]
    assert store.best().step == 2
    assert store.latest().step == 5
    write(store, 6, 7, best=(6,))
    assert steps(store) == [7, 6]
    assert store.best().step == 6


def test_more_are_kept_when_asked_for(tmp_path):
    store = CheckpointStore(tmp_path, keep=3, files=Quick())
    write(store, *range(10))
    assert steps(store) == [9, 8, 7]


@pytest.mark.parametrize("keep", [1, 0, -3])
def test_fewer_than_two_are_refused(keep, tmp_path):
    with pytest.raises(InputError, match="at least two"):
        CheckpointStore(tmp_path, keep=keep)


def test_what_was_just_written_stays_even_when_others_are_ahead(store):
    write(store, 10, 20, 5)
    assert steps(store) == [20, 10, 5]


def test_steps_are_compared_as_numbers(store):
    write(store, 99_999_999, 100_000_000)
    assert steps(store) == [100_000_000, 99_999_999]


def test_other_files_are_left_alone(store):
    write(store, 1)
    (store.folder / "step-1").mkdir()
    (store.folder / "step-00000009").write_text("a file")
    (store.folder / "notes.txt").write_text("mine")
    write(store, 2, 3, 4)
    assert steps(store) == [4, 3]
    assert {"step-1", "step-00000009", "notes.txt"} <= {path.name for path in store.folder.iterdir()}


def test_a_newer_format_is_refused_and_never_removed(store, monkeypatch):
    monkeypatch.setattr(manifest, "VERSION", 2)
    write(store, 9)
    monkeypatch.setattr(manifest, "VERSION", 1)
    write(store, 1, 2, 3)
    assert steps(store) == [9, 3, 2]
    with pytest.raises(FileFormatError, match=r"step-00000009 cannot be read: it was written by gpuwise .* in version 2"):
        store.latest()
    write(store, 10, 11, 12)
    assert steps(store) == [12, 11, 9]
    assert store.latest().step == 12


def test_a_meta_that_is_no_json_is_refused(store):
    with pytest.raises(InputError, match="must be JSON"):
        store.write(pack({}), step=1, meta={"x": object()})
    assert list(store.folder.iterdir()) == []


def test_outcomes_say_what_a_save_took(store):
    saver = Saver(store)
    assert saver.poll() == ()
    assert saver.finish() == ()
    saver.begin(1, sample_state(1), meta={"a": 1})
    (saved,) = saver.finish()
    assert isinstance(saved, Saved)
    assert (saved.step, saved.path) == (1, store.folder / "step-00000001")
    assert saved.nbytes == store.latest().manifest.nbytes
    assert saved.write_s > 0
    assert saved.cpu_s > 0
    now = saver.save_now(2, sample_state(2), best=True)
    assert isinstance(now, Saved)
    assert now.held_up_s >= now.write_s
    assert saver.poll() == ()
    assert store.best().step == 2


def test_a_note_of_the_store_reaches_the_outcome(store):
    saver = Saver(store)
    store.notes.append(Note("some", "a sentence"))
    assert saver.save_now(1, sample_state(1)).notes == (Note("some", "a sentence"),)
    assert saver.save_now(2, sample_state(2)).notes == ()


def test_without_memory_for_a_copy_it_is_written_at_once(store, monkeypatch):
    monkeypatch.setattr(snapshot, "detect_memory", lambda: SimpleNamespace(available_bytes=100))
    saver = Saver(store)
    saver.begin(1, sample_state(1))
    (saved,) = saver.poll()
    assert saved.held_up_s >= saved.write_s
    assert same(store.latest().load(), sample_state(1))


def test_room_is_made_by_removing_what_need_not_be_kept(store):
    write(store, 1, 2)
    store.keep = 5
    write(store, 3, 4)
    store.keep = 2
    store.files.free_bytes = lambda folder: 10**9 if len(steps(store)) == 2 else 0
    assert store.room_for(1000) is None
    assert steps(store) == [4, 3]
    assert "the disk is nearly full: a checkpoint needs 1.01 GiB, 954 MiB are free" in store.room_for(10**9)


def test_a_folder_that_cannot_be_asked_is_an_outcome(store):
    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    store.files.free_bytes = refuse
    outcome = Saver(store).save_now(1, sample_state(1))
    assert isinstance(outcome, SaveFailure)
    assert "cannot be used: Permission denied" in outcome.error


def test_copies_use_the_same_room_again():
    room, packed = Snapshot(), pack(sample_state(1))
    first = room.take(packed)
    addresses = {name: t.data_ptr() for name, t in first.tensors["model"].items()}
    assert all(
        same(first.tensors[part][name], tensor) for part in packed.tensors for name, tensor in packed.tensors[part].items()
    )
    second = room.take(pack(sample_state(2)))
    assert {name: t.data_ptr() for name, t in second.tensors["model"].items()} == addresses
    assert room.wait() == 0.0
    larger = room.take(pack({"model": {"a": torch.arange(10_000)}}))
    assert same(larger.tensors["model"]["a"], torch.arange(10_000))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_of_a_device_are_of_the_moment_they_were_asked_for(store):
    image = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    state = {
        "model": {
            "weight": torch.randn(4096, 1024, device="cuda"),
            "image": image,
            "host": torch.randn(9),
            "part": torch.randn(64, 64, device="cuda")[:, ::2],
        }
    }
    expected = {name: tensor.cpu().clone() for name, tensor in state["model"].items()}
    saver = Saver(store)
    for step in (1, 2):
        saver.begin(step, state)
        for tensor in state["model"].values():
            tensor.add_(1)
        (saved,) = saver.finish()
        assert saved.held_up_s > 0
        loaded = store.latest().load()["model"]
        assert all(same(loaded[name], tensor) for name, tensor in expected.items())
        expected = {name: tensor + 1 for name, tensor in expected.items()}
    assert isinstance(saver.save_now(3, state), Saved)
    assert all(same(store.latest().load()["model"][name], tensor) for name, tensor in expected.items())
