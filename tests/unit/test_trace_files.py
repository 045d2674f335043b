"""Trace files: read back equal, or refused with exactly one kind of error."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import small_rank, small_trace

from gpuwise.errors import FileFormatError
from gpuwise.trace import Axis, Trace, TraceFamily, build_family, load, save

AXES = (Axis("micro_batch", 2, 1, 1), Axis("seq_len", 4, 4, 2))


def small_family(small: Callable[..., Trace] = small_trace) -> TraceFamily:
    grid = product(*(axis.points for axis in AXES))
    family = build_family({(n, s): small(micro_batch=n, seq_len=s) for n, s in grid}, AXES, {"micro_batch": 1})
    assert family is not None
    return family


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype.kind == b.dtype.kind
        assert np.array_equal(a, b)
    elif is_dataclass(a) and type(a).__name__ != "Strategy":
        for field in fields(a):
            assert_equal(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b


@cache
def saved_bytes(family: bool) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        save(small_family() if family else small_trace(), path)
        return path.read_bytes()


def members(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def written(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, allow_pickle=False, **arrays)
    return path


def with_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    arrays = members(saved_bytes(True))
    header = json.loads(arrays["header"].tobytes())
    changed = change(header)
    text = json.dumps(header if changed is None else changed)
    return written(path, {**arrays, "header": np.frombuffer(text.encode(), dtype=np.uint8)})


@pytest.mark.parametrize("make", [small_trace, small_family, small_rank, lambda: small_family(small_rank)])
def test_what_is_saved_is_loaded_equal(make: Callable[[], Trace | TraceFamily], tmp_path: Path) -> None:
    original = make()
    save(original, tmp_path / "a.npz")
    assert_equal(load(tmp_path / "a.npz"), original)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_the_suffix_is_the_users_own(tmp_path: Path) -> None:
    save(small_trace(), tmp_path / "a.trace")
    assert_equal(load(str(tmp_path / "a.trace")), small_trace())


def test_an_earlier_file_survives_a_save_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    save(small_trace(), path)

    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(FileFormatError, match=r"cannot write .*no space"):
        save(small_trace(micro_batch=9), path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert_equal(load(path), small_trace())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="there is no trace file"):
        load(tmp_path / "nothing.npz")


def test_a_folder_is_not_a_trace(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="not a gpuwise trace"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"\x93NUMPY", b"\x80\x04K\x01.", b"{}", b"\0" * 4096])
def test_foreign_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not a gpuwise trace"):
        load(path)


def test_foreign_archives(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    np.savez(tmp_path / "b.npz", weights=np.arange(3))
    np.save(tmp_path / "c.npy", np.arange(3))
    for name in ("a.zip", "b.npz", "c.npy"):
        with pytest.raises(FileFormatError, match="not a gpuwise trace"):
            load(tmp_path / name)


def test_truncated_anywhere(tmp_path: Path) -> None:
    data = saved_bytes(True)
    path = tmp_path / "a.npz"
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(FileFormatError):
            load(path)


def test_a_newer_version_says_so(tmp_path: Path) -> None:
    path = with_header(tmp_path / "a.npz", lambda h: h.update(version=4))
    with pytest.raises(FileFormatError, match=r"version 4; this gpuwise reads versions up to 3") as caught:
        load(path)
    assert "upgrade gpuwise" in caught.value.ways_out


def test_columns_of_several_devices_are_not_in_files_of_one(tmp_path: Path) -> None:
    of_ranks = {"group", "stream", "storage_stream", "wait_position", "wait_stream", "wait_on"}
    save(small_rank(), tmp_path / "a.npz")
    assert set(members((tmp_path / "a.npz").read_bytes())) - set(members(saved_bytes(False))) == of_ranks


def test_a_file_of_version_2_is_of_one_device(tmp_path: Path) -> None:
    def of_version_2(header: dict[str, Any]) -> None:
        for name in ("rank", "stages", "groups", "micro_batches"):
            del header[name]
        header["version"] = 2

    assert_equal(load(with_header(tmp_path / "a.npz", of_version_2)), small_family())


@pytest.mark.parametrize(
    ("column", "value"),
    [("group", 2), ("group", -2), ("stream", 128), ("storage_stream", -1), ("wait_on", 99), ("wait_position", 0)],
)
def test_streams_and_groups_that_are_not_there(column: str, value: int, tmp_path: Path) -> None:
    save(small_rank(), tmp_path / "a.npz")
    arrays = members((tmp_path / "a.npz").read_bytes())
    arrays[column] = np.full(len(arrays[column]), value, dtype=np.int32)
    with pytest.raises(FileFormatError, match="damaged"):
        load(written(tmp_path / "b.npz", arrays))
    arrays[column] = arrays[column][:1]
    with pytest.raises(FileFormatError, match="damaged"):
        load(written(tmp_path / "c.npz", arrays))


def test_version_1_with_assumptions_as_sentences_is_read(tmp_path: Path) -> None:
    sentence = "assumed sequence length 1,024; --seq-len changes it"
    path = with_header(tmp_path / "a.npz", lambda h: h.update(version=1, assumptions=[sentence]))
    (note,) = load(path).header.assumption_notes
    assert (note.text, note.flag) == (sentence, "--seq-len")


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda h: h.update(format="other"),
    "a list": lambda h: [1, 2],
    "a number": lambda h: 3,
    "other columns": lambda h: h.update(columns=h["columns"][::-1]),
    "no columns": lambda h: h.pop("columns"),
    "no modules": lambda h: h.pop("modules"),
    "modules a number": lambda h: h.update(modules=3),
    "too few modules": lambda h: h.update(modules=[""]),
    "too few names": lambda h: h.update(names=h["names"][:-1]),
    "no strategy": lambda h: h.pop("strategy"),
    "unknown strategy": lambda h: h["strategy"].update(precision="fp4"),
    "unknown key": lambda h: h.update(command="rm"),
    "axes a number": lambda h: h.update(axes=7),
    "axes wrong": lambda h: h.update(axes=[{"name": "x"}]),
    "axes too few": lambda h: h.update(axes=h["axes"][:1]),
    "axes not given": lambda h: h.update(axes=None),
    "axis step zero": lambda h: h["axes"][0].update(step=0),
    "axis start a text": lambda h: h["axes"][0].update(start="2"),
    "axis degree negative": lambda h: h["axes"][0].update(degree=-1),
    "sizes a list": lambda h: h.update(sizes=[1]),
    "sizes without the axes": lambda h: h.update(sizes={}),
    "a size that is a text": lambda h: h["sizes"].update(micro_batch="2"),
    "parameters a text": lambda h: h.update(parameters="many"),
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_header_that_makes_no_sense(change: str, tmp_path: Path) -> None:
    path = with_header(tmp_path / "a.npz", HEADERS[change])
    with pytest.raises(FileFormatError):
        load(path)


@pytest.mark.parametrize("name", sorted(members(saved_bytes(True))))
def test_a_column_missing_or_of_another_type_or_shape(name: str, tmp_path: Path) -> None:
    arrays = members(saved_bytes(True))
    wrong: list[dict[str, np.ndarray]] = [
        {k: v for k, v in arrays.items() if k != name},
        {**arrays, name: arrays[name].astype(np.float64)},
        {**arrays, name: arrays[name].astype("S4")},
        {**arrays, name: arrays[name][..., :-1][:-1]},
        {**arrays, name: np.int64(3)},
    ]
    if name != "header":  # which is text, whatever its shape
        wrong.append({**arrays, name: arrays[name][None]})
    for index, content in enumerate(wrong):
        with pytest.raises(FileFormatError):
            load(written(tmp_path / f"{index}.npz", content))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("operation", 99),
        ("module", -1),
        ("phase", 9),
        ("micro_step", 3),
        ("kind", 77),
        ("category", 9),
        ("born", -2),
        ("died", 99),
        ("storage_module", 50),
        ("size_bytes", -5),
    ],
)
def test_an_index_outside_its_table(name: str, value: int, tmp_path: Path) -> None:
    arrays = members(saved_bytes(False))
    arrays[name] = arrays[name].copy()
    arrays[name][0] = value
    with pytest.raises(FileFormatError, match="damaged"):
        load(written(tmp_path / "a.npz", arrays))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    family=st.booleans(),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8),
)
def test_flipped_bytes_load_or_are_refused(family: bool, flips: list[tuple[float, int]], tmp_path: Path) -> None:
    data = bytearray(saved_bytes(family))
    for place, change in flips:
        data[int(place * len(data))] ^= change
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    try:
        loaded = load(path)
    except FileFormatError:
        return
    assert isinstance(loaded, Trace | TraceFamily)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(sorted(members(saved_bytes(True)))), data=st.data())
def test_changed_numbers_load_or_are_refused(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """The archive is whole and its checksums are right, only its content is not ours."""
    arrays = members(saved_bytes(True))
    column = arrays[name].copy()
    flat = column.reshape(-1)
    info = np.iinfo(column.dtype)
    for _ in range(data.draw(st.integers(1, 4))):
        flat[data.draw(st.integers(0, len(flat) - 1))] = data.draw(st.integers(info.min, info.max))
    path = written(tmp_path / "a.npz", {**arrays, name: column})
    try:
        loaded = load(path)
    except FileFormatError:
        return
    assert isinstance(loaded, TraceFamily)
