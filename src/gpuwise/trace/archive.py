"""Archives of whole numbers: one npz whose member `header` is JSON. No pickle anywhere."""

from __future__ import annotations

import io
import json
import os
import threading
import zipfile
from collections.abc import Collection, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError
from gpuwise.plain_files import open_regular, parse_json, reason_of

ArchiveHeader: TypeAlias = Mapping[str, Any]  # JSON whose values are checked where they are read
LIMIT_BYTES = 2**30  # unpacked; the largest model's trace is a thousandth of this


def write_archive(path: str | os.PathLike[str], header: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a temporary file and renames it, so that the file is complete or absent. Raises FileFormatError on failure."""
    members = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays}
    try:
        with written_whole(path) as file:
            np.savez_compressed(file, allow_pickle=False, **members)
    except OSError as error:
        raise FileFormatError(
            f"cannot write {path}: {error.strerror or error}.",
            ["name a folder that exists and can be written to"],
            reason=str(error.strerror or error),
        ) from None


def read_archive(
    path: str | os.PathLike[str], *, format: str, versions: Collection[int], what: str
) -> tuple[ArchiveHeader, dict[str, np.ndarray]]:
    """The header and the arrays of an archive.

    Arguments:
        format: that its header names.
        versions: that can be read.
        what: noun for messages, such as "trace".

    Raises FileFormatError if the file is missing, truncated, foreign or newer.
    """
    try:
        arrays = _members(path)
        header = parse_json(arrays.pop("header").tobytes())
    except FileNotFoundError:
        raise FileFormatError(f"there is no {what} file {path}.") from None
    except Exception as error:  # damage may break the archive, its compression, an array's head or the JSON
        raise FileFormatError(
            f"{path} is not a gpuwise {what}, or is damaged ({reason_of(error)}).",
            ["record it again", "check that the copy is complete"],
        ) from None
    if not isinstance(header, dict) or header.get("format") != format:
        raise FileFormatError(f"{path} is not a gpuwise {what}.")
    if header.get("version") not in versions:
        raise FileFormatError(
            f"{path} is a {what} of version {header.get('version')}; this gpuwise reads versions up to {max(versions)}.",
            ["record it again", "upgrade gpuwise"],
        )
    return header, arrays


def _members(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of the archive: whole numbers only, and none larger than what the file holds.

    `np.load` would take the memory an array's head asks for before it looks whether the file has as much.
    """
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > LIMIT_BYTES:
            raise ValueError(f"more than {LIMIT_BYTES:,} bytes")
        return {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}


# NumPy reads a head with `ast`, whose recursion count CPython 3.11 keeps for all threads together (python/cpython#106905).
_READS_HEAD = threading.Lock()


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    read_head = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with _READS_HEAD:
        shape, by_column, dtype = read_head[np.lib.format.read_magic(file)](file)
    if dtype.kind not in "iu":
        raise ValueError("a column holds no whole numbers")
    if len(content) - file.tell() != prod(shape) * dtype.itemsize:
        raise ValueError("a column is not as long as it says")
    numbers = np.frombuffer(content, dtype, offset=file.tell())
    return numbers.reshape(shape, order="F" if by_column else "C").copy()
