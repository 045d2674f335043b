"""Files of tensors: the library reads what we write, and tensors made of several come back as they were."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.fault.checkpoint_faults import Quick, same

from gpuwise.errors import FileFormatError, InputError, UnsupportedError
from gpuwise.runtime.checkpoint import CheckpointStore, Files, pack, unpack
from gpuwise.runtime.checkpoint.tensors import NATIVE
from gpuwise.runtime.checkpoint.tensors_file import Digest, check, read_tensors, write_tensors

TENSORS = {
    "weight": torch.randn(3, 5),
    "half": torch.randn(7).half(),
    "count": torch.tensor(4),
    "empty": torch.empty(0, 3),
    "mask": torch.tensor([True, False, True]),
    "transposed": torch.randn(4, 3).t(),
    "float8": torch.randn(5).to(torch.float8_e4m3fn),
    "image": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    'name with "quotes" and ü': torch.ones(1),
    "large": torch.randn(300, 1000),
}


def test_the_library_reads_what_is_written(tmp_path):
    digest = write_tensors(Files(), tmp_path / "a.safetensors", TENSORS)
    data = (tmp_path / "a.safetensors").read_bytes()
    assert digest == Digest(len(data), hashlib.sha256(data).hexdigest())
    read = load_file(tmp_path / "a.safetensors")
    assert read.keys() == TENSORS.keys()
    assert all(same(read[name], tensor.contiguous()) for name, tensor in TENSORS.items())
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_it_is_what_the_library_writes(tmp_path):
    """The same header and the same data, apart from the order of the tensors."""
    write_tensors(Files(), tmp_path / "a", TENSORS)
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "b", metadata={"format": "pt"})

    def parts(path):
        """What the header says and the bytes it names, by tensor; where the data begins, and how much there is."""
        file = path.read_bytes()
        begins = 8 + struct.unpack("<Q", file[:8])[0]
        header, data = json.loads(file[8:begins]), file[begins:]
        results = {name: (entry, data[slice(*entry.pop("data_offsets"))]) for name, entry in header.items() if name in TENSORS}
        return results, header["__metadata__"], begins % 8, len(data)

    assert parts(tmp_path / "a") == parts(tmp_path / "b")


@pytest.mark.parametrize("dtype", NATIVE)
def test_every_native_dtype_has_the_librarys_name(dtype, tmp_path):
    tensor = torch.zeros(3, dtype=torch.uint8).to(dtype)
    write_tensors(Files(), tmp_path / "a", {"a": tensor})
    assert same(load_file(tmp_path / "a")["a"], tensor)


def test_no_tensors_are_a_file_too(tmp_path):
    write_tensors(Files(), tmp_path / "a", {})
    assert read_tensors(tmp_path / "a") == {}


def test_what_is_no_safetensors_file_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"nonsense")
    with pytest.raises(FileFormatError, match="cannot be read as safetensors"):
        read_tensors(tmp_path / "a")
    with pytest.raises(FileFormatError, match="b is missing"):
        check(tmp_path / "b", Digest(0, ""))


def test_large_tensors_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("gpuwise.runtime.checkpoint.tensors_file._CHUNK_BYTES", 1000)
    monkeypatch.setattr("gpuwise.runtime.checkpoint.tensors_file._GATHER_BYTES", 100)
    write_tensors(Files(), tmp_path / "a", TENSORS)
    assert all(same(load_file(tmp_path / "a")[name], tensor.contiguous()) for name, tensor in TENSORS.items())


def test_a_loaded_tensor_has_memory_of_its_own(tmp_path):
    """It must not keep a removed checkpoint on the disk, nor change with the file."""
    store = CheckpointStore(tmp_path, files=Quick())
    loaded = store.write(pack({"model": {"a": torch.ones(1000)}}), step=1).load()
    path = tmp_path / "step-00000001" / "model.safetensors"
    with open(path, "r+b") as file:
        file.seek(-4000, 2)
        file.write(b"\0" * 4000)
    assert loaded["model"]["a"].eq(1).all()
    assert "model.safetensors" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    "bad",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
    ],
)
def test_a_tensor_without_plain_memory_is_refused(bad):
    with pytest.raises(UnsupportedError, match=r"model\.weight (is sparse|has no values)"):
        pack({"model": {"weight": bad}})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"Model": {}}, "cannot be named 'Model'"),
        ({"a/b": {}}, "cannot be named"),
        ({3: {}}, "cannot be named 3"),
        ({"a": {1.5: 1}}, "a key of type float"),
        ({"a": {"b": {1, 2}}}, r"a\.b is a set"),
        ({"a": [1j]}, r"a\.0 is a complex"),
        ({"a": __import__("numpy").array(["text"])}, "NumPy values of type <U4"),
    ],
)
def test_what_cannot_be_saved_is_named(state, why):
    with pytest.raises(InputError, match=why):
        pack(state)


def test_a_tree_that_contains_itself_is_refused():
    tree: list[object] = []
    tree.append(tree)
    with pytest.raises(InputError, match="nested more than 100 deep"):
        pack({"a": tree})


@pytest.mark.parametrize("kind", ["OptimState8bit", "OptimState4bit", "OptimStateFp8"])
def test_low_bit_states_come_back_as_such(kind, tmp_path):
    subclasses = pytest.importorskip("torchao.optim.subclass_" + kind.removeprefix("OptimState").lower())
    arguments = {} if kind == "OptimStateFp8" else {"signed": True}
    live = getattr(subclasses, kind).zeros((64, 128), **arguments)
    live.copy_(torch.randn(64, 128))
    CheckpointStore(tmp_path, files=Quick()).write(pack({"optimizer": {"state": {0: {"exp_avg": live}}}}), step=1)
    loaded = CheckpointStore(tmp_path).latest().load()["optimizer"]["state"][0]["exp_avg"]
    assert type(loaded) is type(live)
    names, attributes = live.__tensor_flatten__()
    assert loaded.__tensor_flatten__() == (names, attributes)
    assert all(same(getattr(loaded, name), getattr(live, name)) for name in names)
    assert same(loaded.dequantize(), live.dequantize())


def test_two_shapes_of_one_memory_keep_their_shapes(tmp_path):
    """Of dtypes that are written as bytes the bytes alone do not tell them apart."""
    numbers = torch.arange(6.0).to(torch.complex128)
    state = {"model": {"flat": numbers, "table": numbers.view(2, 3)}}
    loaded = CheckpointStore(tmp_path, files=Quick()).write(pack(state), step=1).load()["model"]
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {"flat": (6,), "table": (2, 3)}
    assert torch.equal(loaded["table"], numbers.view(2, 3))


def test_an_unknown_kind_of_tensor_is_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(UnsupportedError, match=r"model\.a is a torch\..*TwoTensor, a kind of tensor"):
        pack({"model": {"a": TwoTensor(torch.ones(2), torch.ones(2))}})


def test_a_parameter_comes_back_as_a_plain_tensor():
    packed = pack({"model": {"a": torch.nn.Parameter(torch.ones(2))}})
    assert same(unpack(packed.structure, packed.tensors)["model"]["a"], torch.ones(2))
