"""Hostile checkpoints: nothing in them runs, nothing outside their folder is read or removed, and none fills memory.

Their checksums are right: whoever sends a checkpoint can compute those.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fault.checkpoint_faults import Quick, same, sample_state, save

from gpuwise.errors import FileFormatError, GpuwiseError
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore, Saver, tensors_file
from gpuwise.runtime.checkpoint import manifest as manifest_module
from gpuwise.runtime.checkpoint.manifest import dump_json


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """The folder of a checkpoint, which a test makes hostile."""
    save(tmp_path / "checkpoints", Quick(), step=1, seed=1)
    return tmp_path / "checkpoints" / "step-00000001"


def forge(folder: Path, **changes: Any) -> None:
    """A manifest with right checksums, of the files that are there, with these fields instead of its own."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    content = manifest["content"]
    for name, digest in content["files"].items():
        data = (folder / name).read_bytes()
        digest.update(nbytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    content.update(changes)
    (folder / "manifest.json").write_bytes(dump_json({"checksum": manifest_module._checksum(content), "content": content}))


def load(folder: Path) -> Any:
    return Checkpoint(folder, 1).load()


def test_a_forged_manifest_is_accepted_when_it_is_right(hostile: Path) -> None:
    """Else the tests below would prove nothing."""
    forge(hostile)
    assert same(load(hostile), sample_state(1))


@pytest.mark.parametrize(
    "name",
    [
        "../../secret",
        "/etc/hostname",
        "a/../../../secret.safetensors",
        "..",
        ".",
        "",
        "Model.safetensors",
        "model.safetensors\n",
        "model.safetensors/",
        "state.json\0",
        "con:model.safetensors",
        "x.pkl",
        "model.bin",
    ],
)
def test_a_name_that_is_no_file_of_a_checkpoint_is_not_opened(
    name: str, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = hostile.parent.parent / "secret"
    secret.write_bytes(b"secret")
    opened: list[Path] = []
    plain_open = tensors_file.open_ordinary
    for module in (tensors_file, manifest_module):
        monkeypatch.setattr(module, "open_ordinary", lambda path: opened.append(path) or plain_open(path))
    files = json.loads((hostile / "manifest.json").read_bytes())["content"]["files"]
    forge(hostile, files={**files, name: {"nbytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}})
    with pytest.raises(FileFormatError, match=r"manifest\.json"):
        load(hostile)
    assert opened == [hostile / "manifest.json"]


@pytest.mark.parametrize(
    "digest",
    [
        {"nbytes": 10**30, "sha256": "0" * 64},
        {"nbytes": -1, "sha256": "0" * 64},
        {"nbytes": 1.5, "sha256": "0" * 64},
        {"nbytes": 1, "sha256": "0"},
        {"nbytes": 1, "sha256": 0},
        {"nbytes": True, "sha256": "0" * 64},
        {},
        [],
        None,
    ],
)
def test_a_size_or_checksum_that_is_none_is_refused(digest: Any, hostile: Path) -> None:
    forge(hostile, files={"state.json": digest})
    with pytest.raises(FileFormatError):
        load(hostile)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 2},
        {"step": "1"},
        {"step": None},
        {"version": "9"},
        {"version": None},
        {"files": []},
        {"files": {}},
        {"meta": 3},
        {"format": "another"},
        {"best": 3, "meta": None},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(changes: dict[str, Any], hostile: Path) -> None:
    forge(hostile, **changes)
    with pytest.raises(FileFormatError):
        load(hostile)


BOMBS = {
    "nested lists": b"[" * 200_000,
    "nested dicts": b'{"a":' * 200_000,
    "closed nesting": b'{"rest":' + b"[" * 400 + b"]" * 400 + b"}",
    "a long number": b'{"rest":' + b"9" * 100_000 + b"}",
    "no text": b"\xff\xfe\x00",
    "another type": b"[1]",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
def test_a_json_bomb_is_refused(bomb: str, name: str, hostile: Path) -> None:
    (hostile / name).write_bytes(BOMBS[bomb])
    if name == "state.json":
        forge(hostile)
    with pytest.raises(FileFormatError):
        load(hostile)


def test_a_file_of_absurd_size_is_not_read(hostile: Path) -> None:
    os.truncate(hostile / "manifest.json", 10**12)  # sparse: it takes no room
    with pytest.raises(FileFormatError, match=r"manifest.json is larger than"):
        load(hostile)
    os.truncate(hostile / "state.json", 10**12)
    with pytest.raises(FileFormatError, match=r"manifest.json is larger than"):
        CheckpointStore(hostile.parent).latest()


def tensors_with_header(header: bytes, *, length: int | None = None, data: bytes = b"\0" * 64) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(**changes: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64], **changes}}).encode()


HEADERS = {
    "absurd length": tensors_with_header(b"{}", length=2**63),
    "length beyond the file": tensors_with_header(b"{}", length=10**6),
    "no header": b"\x01",
    "empty": b"",
    "offsets beyond the file": tensors_with_header(entry(shape=[10**9], data_offsets=[0, 4 * 10**9])),
    "negative offsets": tensors_with_header(entry(data_offsets=[-64, 0])),
    "offsets of another size": tensors_with_header(entry(data_offsets=[0, 60])),
    "absurd shape": tensors_with_header(entry(shape=[2**62, 2**62])),
    "unknown dtype": tensors_with_header(entry(dtype="OBJECT")),
    "a hole": tensors_with_header(entry(shape=[8], data_offsets=[32, 64])),
    "nested": tensors_with_header(b'{"a":' * 100_000),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_hostile_tensor_file_is_refused(header: str, hostile: Path) -> None:
    (hostile / "rest.safetensors").write_bytes(HEADERS[header])
    forge(hostile)
    with pytest.raises(FileFormatError, match=r"rest.safetensors"):
        load(hostile)


@pytest.mark.parametrize(
    "structure",
    [
        {"$wrapped": ["os.system", {}, ["true"]]},
        {"$wrapped": ["Tensor", {}, []]},
        {"$wrapped": ["OptimState8bit", {"codes": 1}, [True, 1]]},
        {"$dtype": "nn"},
        {"$dtype": "__class__"},
        {"$array": ["rest", "rng", "|O8", [1]]},
        {"$array": ["rest", "rng", "V9", [1]]},
        {"$array": ["rest", "rng", "|u1", [10**18]]},
        {"$number": ["|O8", "00" * 8]},
        {"$tensor": ["elsewhere", "rng"]},
        {"$tensor": ["rest", "../../secret"]},
        {"$tensor": ["rest", "rng", {"dtype": "float64", "shape": [10**12]}]},
        {"$import": "os"},
        {"$dict": [[["unhashable"], 1]]},
        {"$bytes": "%%%"},
    ],
)
def test_a_structure_names_nothing_but_what_is_known(structure: Any, hostile: Path) -> None:
    (hostile / "state.json").write_bytes(dump_json({"rest": structure}))
    forge(hostile)
    with pytest.raises(GpuwiseError) as caught:
        load(hostile)
    assert caught.value.code in ("bad-file", "missing-dependency")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_link_out_of_the_folder_is_not_followed(name: str, hostile: Path) -> None:
    outside = hostile.parent.parent / "outside"
    (hostile / name).rename(outside)
    (hostile / name).symlink_to(outside)
    with pytest.raises(FileFormatError, match=r"is a link"):
        load(hostile)


@pytest.mark.parametrize("name", ["step-00000001", "step-00000001.old", "step-00000002", ".step-00000003.999999999.tmp"])
def test_what_links_lead_to_is_not_removed(name: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "checkpoints"
    save(outside, Quick(), step=1, seed=1)
    valuable = sorted(outside.rglob("*"))
    folder.mkdir()
    (folder / name).symlink_to(outside / "step-00000001")
    saver = Saver(CheckpointStore(folder, files=Quick()))
    for step in (1, 1, 2, 2, 3, 3, 4):
        saver.save_now(step, sample_state(1))
    assert sorted(outside.rglob("*")) == valuable
    assert CheckpointStore(folder).latest().step == 4


def test_a_saved_tensor_is_no_code(tmp_path: Path) -> None:
    """What pickle would run is refused when it is saved."""

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    with pytest.raises(GpuwiseError):
        Saver(CheckpointStore(tmp_path / "c")).save_now(1, {"model": {"a": torch.zeros(1), "b": Payload()}})
    assert list(tmp_path.iterdir()) == []
