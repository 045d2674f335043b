"""Mounts of object stores that tests make: what they refuse, lose or damage, and a watch over what is done to a folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuwise.runtime.copies.mount import MountFiles

MEDDLING = {
    "os.rename",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.utime",
    "fcntl.flock",
    "fcntl.lockf",
}


class Strict(MountFiles):
    """Refuses what Mountpoint for Amazon S3 refuses, and knows no fsync. Counts the files that were closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self._open: dict[int, Path] = {}

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._open[fd] = path
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        path = self._open.pop(fd)
        self.closed.append(path.name)
        self.uploaded(path)

    def uploaded(self, path: Path) -> None:
        """Where a fault goes."""

    def rename(self, old: Path, new: Path) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


class Faulty(Strict):
    """Does something to each uploaded file of this name: "loses bytes", "drops", "flips" a bit or "fails" in its close."""

    def __init__(self, fault: str, name: str):
        super().__init__()
        self.fault, self.name = fault, name

    def uploaded(self, path: Path) -> None:
        if path.name != self.name:
            return
        if self.fault == "loses bytes":
            os.truncate(path, path.stat().st_size // 2)
        elif self.fault == "drops":
            path.unlink()
        elif self.fault == "flips":
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        else:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


_watched: list[tuple[str, list[str]]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for folder, meddled in _watched:
        paths = [os.fspath(a) for a in arguments if isinstance(a, str | os.PathLike)]
        if not any(path.startswith(folder) for path in paths):
            continue
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if event in MEDDLING or (writes and (flags & os.O_APPEND or not flags & os.O_EXCL)):
            meddled.append(f"{event} {paths[0]}")


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """A context that gathers what an object store would refuse: anything in the folder but new files, reads and removals."""
    if not _watched:
        sys.addaudithook(_hook)  # for ever: Python knows no other way
    meddled: list[str] = []
    _watched.append((str(folder), meddled))
    try:
        yield meddled
    finally:
        _watched[-1] = ("\0", [])
