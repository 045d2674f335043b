"""Hostile trace files: nothing in them runs, and none of them fills memory.

pickle is imported here to make what an attacker would send; gpuwise itself must never read it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gpuwise.errors import FileFormatError
from gpuwise.trace import load


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.marker),)


def test_the_payload_works_when_pickle_is_allowed(tmp_path: Path) -> None:
    """Else the tests below would prove nothing."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("member", ["header", "values", "operation", "unknown"])
def test_an_object_array_is_not_unpickled(member: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "a.npz"
    arrays = {"header": np.frombuffer(json.dumps({"format": "gpuwise-trace", "version": 1}).encode(), dtype=np.uint8)}
    np.savez(path, allow_pickle=True, **{**arrays, member: np.array([Payload(marker)], dtype=object)})
    with pytest.raises(FileFormatError):
        load(path)
    assert not marker.exists()


def test_a_bare_pickle_is_not_unpickled(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "a.npz"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(FileFormatError):
        load(path)
    assert not marker.exists()


def test_a_pickle_named_as_an_array_is_not_unpickled(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", pickle.dumps(Payload(marker)))
        archive.writestr("values", pickle.dumps(Payload(marker)))
    with pytest.raises(FileFormatError):
        load(path)
    assert not marker.exists()


def test_an_array_that_claims_to_be_huge_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """A header of 128 bytes may promise terabytes."""
    path = tmp_path / "a.npz"
    claim = io.BytesIO()
    np.lib.format.write_array_header_1_0(claim, {"descr": "<i8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", claim.getvalue())
    with pytest.raises(FileFormatError):
        load(path)


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, header=np.frombuffer(b"[" * 200_000, dtype=np.uint8))
    with pytest.raises(FileFormatError):
        load(path)


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("header.npy", "w") as member:
        for _ in range(1025):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**21
    with pytest.raises(FileFormatError, match="more than"):
        load(path)
