"""What names a bad batch, and a disk that is nearly full."""

import json
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch

from gpuwise.runtime.checkpoint.room import MARGIN_BYTES, needed_bytes
from gpuwise.runtime.health.bad_batch import write_bad_batch
from gpuwise.runtime.health.disk import DiskWatch

GIB = 2**30


def test_a_bad_batch_is_named(tmp_path):
    where = {
        "epoch": 2,
        "samples": torch.tensor([3, 1]),
        "micro_batches": range(4, 6),
        "rank": np.int64(0),
        "more": OrderedDict(a=1),
        "odd": object,
    }
    path = write_bad_batch(tmp_path, where, math.nan, 17, 5)
    assert path == tmp_path / "bad-batch.json"
    record = json.loads(path.read_text())
    assert record.pop("time").startswith("20")
    assert record.pop("where") == {
        "epoch": 2,
        "samples": [3, 1],
        "micro_batches": [4, 5],
        "rank": 0,
        "more": {"a": 1},
        "odd": "<class 'object'>",
    }
    assert record == {"step": 17, "loss": "nan", "seed": 5}
    write_bad_batch(tmp_path, {}, math.inf, 18, 5)
    assert json.loads(path.read_text())["step"] == 18
    assert [file.name for file in tmp_path.iterdir()] == ["bad-batch.json"]


def test_a_bad_batch_that_cannot_be_written(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_bad_batch(tmp_path / "absent", {}, math.nan, 1, 0)


def test_the_disk_is_told_of_once_and_again_when_there_is_room(tmp_path):
    free_bytes = [10 * GIB]
    watch = DiskWatch(tmp_path, free_bytes=lambda folder: free_bytes[0])
    assert watch.look(0.0, 3 * GIB) is None
    free_bytes[0] = 3 * GIB  # enough for the checkpoint, and for nothing beside it
    text = watch.look(10.0, 3 * GIB)
    assert text == (
        f"the disk of {tmp_path} is nearly full: 3 GiB free, the next checkpoint needs 3.12 GiB; until there is "
        "room, the last one stands."
    )
    assert watch.full
    assert watch.look(20.0, 3 * GIB) is None
    free_bytes[0] = 4 * GIB
    assert watch.look(30.0, 3 * GIB) == f"the disk of {tmp_path} has room again: 4 GiB free."
    assert not watch.full


def test_it_is_looked_at_by_time(tmp_path):
    watch = DiskWatch(tmp_path, every_s=10.0)
    assert watch.due(-1e9)
    watch.look(100.0, 0)
    assert not watch.due(109.9)
    assert watch.due(110.0)


def test_a_folder_that_is_not_there_yet(tmp_path):
    assert DiskWatch(tmp_path / "a" / "b").look(0.0, 1) is None
    assert DiskWatch(tmp_path / "a" / "b").look(0.0, 2**60) is not None


def test_small_checkpoints_need_some_room_too(tmp_path):
    assert DiskWatch(tmp_path, free_bytes=lambda folder: MARGIN_BYTES - 1).look(0.0, 0) is not None


@pytest.mark.parametrize("nbytes", [0, 10**6, 10**12])
def test_what_is_told_is_what_a_save_goes_by(tmp_path, nbytes):
    assert DiskWatch(tmp_path, free_bytes=lambda folder: needed_bytes(nbytes)).look(0.0, nbytes) is None
    assert DiskWatch(tmp_path, free_bytes=lambda folder: needed_bytes(nbytes) - 1).look(0.0, nbytes) is not None


def test_a_disk_that_cannot_be_asked_is_not_full(tmp_path):
    def fails(folder):
        raise OSError("stale file handle")

    watch = DiskWatch(tmp_path, free_bytes=fails)
    assert watch.look(0.0, GIB) is None
    assert not watch.full
