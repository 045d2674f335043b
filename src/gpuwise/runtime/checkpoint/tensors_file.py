"""Files of tensors in the safetensors layout: written from host memory as they are hashed, read by the library.

The library's own writer copies all tensors first, and neither hashes nor syncs. The layout is eight bytes with the length of a
JSON header, the header, and the tensors' bytes without gaps (github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.tensors import NATIVE, bytes_of

_CHUNK_BYTES = 8 * 2**20  # of one write: large enough for the disk, small enough to be interrupted
_GATHER_BYTES = 2**20  # smaller tensors are written together


@dataclass(frozen=True)
class Digest:
    """What tells a file from a damaged one."""

    nbytes: int
    sha256: str


class HashedFile:
    """A new file that is hashed as it is written, and on the disk when it is left without an error."""

    def __init__(self, files: Files, path: Path):
        self._files, self._path = files, path
        self._hash, self._nbytes = hashlib.sha256(), 0
        self._gathered = bytearray()

    def __enter__(self) -> HashedFile:
        self._fd = self._files.create(self._path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._flush()
                self._files.sync(self._fd)
        finally:
            self._files.close(self._fd)

    def write(self, data: bytes | memoryview) -> None:
        if len(self._gathered) + len(data) <= _GATHER_BYTES:
            self._gathered += data
            return
        self._flush()
        for start in range(0, len(data), _CHUNK_BYTES):
            self._write(memoryview(data)[start : start + _CHUNK_BYTES])

    @property
    def digest(self) -> Digest:
        return Digest(self._nbytes, self._hash.hexdigest())

    def _flush(self) -> None:
        if self._gathered:
            self._write(memoryview(bytes(self._gathered)))
            self._gathered.clear()

    def _write(self, data: memoryview) -> None:
        self._hash.update(data)
        self._files.write(self._fd, data)
        self._nbytes += len(data)


def write_bytes(files: Files, path: Path, data: bytes) -> Digest:
    """A new file with these bytes, on the disk when this returns. Raises OSError."""
    with HashedFile(files, path) as file:
        file.write(data)
    return file.digest


def write_tensors(files: Files, path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Digest:
    """A new safetensors file, on the disk when this returns. Its metadata says {"format": "pt"}, which transformers asks for,
    and what is in `metadata`.

    Tensors on another device, or with their dims in another order, are copied one at a time. Raises OSError.
    """
    # Wide dtypes first, as the library does, so that each tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": NATIVE[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with HashedFile(files, path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(bytes_of(tensors[name]))
    return file.digest


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, still mapped from it: clone what should outlive it. Raises FileFormatError."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read as safetensors: {error}.") from error


def check(path: Path, expected: Digest) -> None:
    """Raises FileFormatError, with the reason, when the file is not an ordinary one with this size and checksum."""
    with open_ordinary(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes != expected.nbytes:
            raise FileFormatError(f"{path.name} has {nbytes:,} bytes instead of {expected.nbytes:,}")
        try:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FileFormatError(f"{path.name} cannot be read ({error.strerror})") from error
        if digest != expected.sha256:
            raise FileFormatError(f"the checksum of {path.name} is wrong")


def open_ordinary(path: Path) -> BufferedReader:
    """Opens a file for reading that must be an ordinary one: no link, folder, pipe or device. Raises FileFormatError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
    except OSError as error:
        why = {errno.ENOENT: "is missing", errno.ELOOP: "is a link"}.get(error.errno or 0, f"cannot be read ({error.strerror})")
        raise FileFormatError(f"{path.name} {why}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileFormatError(f"{path.name} is not an ordinary file")
    return open(fd, "rb")
