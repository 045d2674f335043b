"""Hostile checkpoints of several ranks: parts of tensors that lie, overlap, leave holes, or claim to be huge.

Their checksums are right: whoever sends a checkpoint can compute those.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.rank_checkpoints import cut, numbered, save_cut

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import Checkpoint
from gpuwise.runtime.checkpoint import manifest as manifest_module
from gpuwise.runtime.checkpoint.manifest import FileName, dump_json, is_file_name
from gpuwise.runtime.parallel.regions import Region, check_cover

MODEL = "model.rank-00001.safetensors"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """The folder of a checkpoint of two ranks: of four rows each has two."""
    state = {"model": {"weight": numbered(4, 2)}, "random": {"torch": torch.zeros(3, dtype=torch.uint8)}}
    save_cut(tmp_path, [cut(state, {"model/weight": Region((2 * rank, 0), (2, 2))}) for rank in range(2)])
    return tmp_path / "step-00000001"


def forge(folder: Path, **changes: Any) -> None:
    """A manifest with right checksums, of the files that are there, with these fields instead of its own."""
    content = json.loads((folder / "manifest.json").read_bytes())["content"]
    for name, digest in content["files"].items():
        data = (folder / name).read_bytes()
        digest.update(nbytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    content.update(changes)
    (folder / "manifest.json").write_bytes(dump_json({"checksum": manifest_module._checksum(content), "content": content}))


def rewrite(path: Path, shards: object, **entry: Any) -> None:
    """The same bytes under another header."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["shards"] = shards if isinstance(shards, str) else json.dumps(shards)
    header["weight"].update(entry)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def read_all(folder: Path) -> None:
    """As one process and as each of two ranks, every one of which is refused."""
    for read in (
        lambda: Checkpoint(folder, 1).load(),
        lambda: Checkpoint(folder, 1).open(rank=0)["model"]["weight"].region(Region((0, 0), (4, 2))),
        lambda: Checkpoint(folder, 1).open(rank=1)["model"]["weight"].region(Region((0, 0), (4, 2))),
    ):
        with pytest.raises(FileFormatError):
            read()


def test_what_is_rewritten_rightly_is_read(hostile: Path):
    """Else the tests below would prove nothing."""
    rewrite(hostile / MODEL, {"weight": [[4, 2], [2, 0]]})
    forge(hostile)
    assert Checkpoint(hostile, 1).load()["model"]["weight"].equal(numbered(4, 2))


SHARDS: dict[str, object] = {
    "beyond the end": {"weight": [[4, 2], [3, 0]]},
    "far beyond the end": {"weight": [[4, 2], [2**80, 0]]},
    "before the start": {"weight": [[4, 2], [-2, 0]]},
    "over the other part": {"weight": [[4, 2], [0, 0]]},
    "half over the other part": {"weight": [[4, 2], [1, 0]]},
    "with a hole between": {"weight": [[6, 2], [4, 0]]},
    "of a huge tensor": {"weight": [[2**60, 2], [2, 0]]},
    "of a tensor of zero size": {"weight": [[0, 2], [2, 0]]},
    "of a negative size": {"weight": [[-4, 2], [2, 0]]},
    "of another number of dims": {"weight": [[4, 2, 1], [2, 0, 0]]},
    "of offsets alone": {"weight": [[2, 0]]},
    "of fractions": {"weight": [[4.0, 2], [2, 0]]},
    "of booleans": {"weight": [[4, 2], [2, False]]},
    "of text": {"weight": "4"},
    "of nothing": {"weight": [[], []]},
    "a list": [],
    "a number": 3,
    "no JSON": "{",
    "nested": "[" * 100_000,
    "no shard at all": {},
}


@pytest.mark.parametrize("shards", SHARDS)
def test_a_part_that_is_not_where_it_says_is_refused(shards: str, hostile: Path):
    rewrite(hostile / MODEL, SHARDS[shards])
    forge(hostile)
    read_all(hostile)


def test_parts_of_other_types_are_no_tensor(hostile: Path):
    rewrite(hostile / MODEL, {"weight": [[4, 2], [2, 0]]}, dtype="I32")
    forge(hostile)
    read_all(hostile)


def test_a_tensor_of_which_no_file_has_anything_is_refused(hostile: Path):
    structure = json.loads((hostile / "state.json").read_bytes())
    structure["model"]["ghost"] = {"$tensor": ["model", "ghost"]}
    (hostile / "state.json").write_bytes(dump_json(structure))
    forge(hostile)
    for read in (lambda: Checkpoint(hostile, 1).load(), lambda: Checkpoint(hostile, 1).open(rank=0)):
        with pytest.raises(FileFormatError):
            read()


def test_many_parts_cut_in_many_ways_take_no_memory():
    size = 5000
    parts = [Region((i, i, i), (1, 1, 1)) for i in range(size - 1)]
    rest = size**3 - len(parts)
    with pytest.raises(FileFormatError, match="cut in too many ways"):
        check_cover(Region((0, 0, 0), (size, size, size)), [*parts, Region((0, 0, 0), (rest, 1, 1))])


@pytest.mark.parametrize("ranks", [0, -1, 1.5, "2", None, True])
def test_a_number_of_ranks_that_is_none_is_refused(ranks: object, hostile: Path):
    forge(hostile, ranks=ranks)
    with pytest.raises(FileFormatError, match=r"manifest\.json"):
        Checkpoint(hostile, 1).load()


@pytest.mark.parametrize(
    "name",
    [
        "model.rank-1.safetensors",
        "model.rank-000001.safetensors",
        "model.rank-00001.safetensors\n",
        "model.rank-../../x.safetensors",
        "model.rank--0001.safetensors",
        "../model.rank-00001.safetensors",
        "model.rank-00001.json",
        "state.rank-00001.rank-00001.json",
        "model.rank-99999999.safetensors",
        "model.rank-\u0661\u0661\u0661\u0661\u0661.safetensors",
    ],
)
def test_a_name_that_is_no_ranks_file_is_refused(name: str, hostile: Path):
    assert not is_file_name(name)
    files = json.loads((hostile / "manifest.json").read_bytes())["content"]["files"]
    content = {**json.loads((hostile / "manifest.json").read_bytes())["content"]}
    content["files"] = {**files, name: {"nbytes": 0, "sha256": "0" * 64}}
    (hostile / "manifest.json").write_bytes(dump_json({"checksum": manifest_module._checksum(content), "content": content}))
    with pytest.raises(FileFormatError, match=r"manifest\.json"):
        Checkpoint(hostile, 1).load()


@pytest.mark.parametrize(
    "name",
    ["state.json", "state.rank-00012.json", "model.safetensors", "model.rank-99999.safetensors", "x.rank-123456.safetensors"],
)
def test_names_of_files_read_back(name: str):
    assert str(FileName.parse(name)) == name
