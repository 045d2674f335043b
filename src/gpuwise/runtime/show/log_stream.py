"""Copies a log to a pipe, a terminal or another device. A slow or absent reader does not delay the run for long."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from contextlib import suppress
from pathlib import Path

from gpuwise.errors import InputError

PATIENCE_S = 5.0  # longest wait for a reader
_CHUNK_BYTES = getattr(select, "PIPE_BUF", 512)  # bytes that a writable pipe accepts without blocking (POSIX)
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")


class LogStream:
    """Writes to a pipe, a character device or one of this process's descriptors (/dev/stdout, /dev/fd/3).

    Attributes:
        problem: a sentence after a failed write, or after PATIENCE_S without a reader; from then on `write` does nothing.

    Raises InputError when the stream cannot be opened, or the pipe has no reader.
    """

    def __init__(self, path: Path):
        self.path = path
        self.problem: str | None = None
        try:
            self._fd: int | None = _opened(path)
        except OSError as error:
            why = "nobody reads it" if error.errno == errno.ENXIO else error.strerror
            raise InputError(
                f"cannot write the log to {path}: {why}.", ["begin to read it first", "choose another --log"]
            ) from error

    def write(self, data: bytes) -> None:
        """Writes all bytes, unless the reader is gone or does not read."""
        left = memoryview(data)
        try:
            while left and self._fd is not None:
                if not select.select([], [self._fd], [], PATIENCE_S)[1]:
                    self._give_up(f"nobody has read it for {PATIENCE_S:g} s")
                else:
                    left = left[os.write(self._fd, left[:_CHUNK_BYTES]) :]
        except (OSError, ValueError) as error:  # ValueError: `select` does not accept the descriptor
            self._give_up(getattr(error, "strerror", None) or str(error))

    def close(self) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _give_up(self, why: str) -> None:
        self.problem = f"the log to {self.path} ends early: {why}."
        self.close()


def is_stream(path: Path) -> bool:
    """Whether the path is a pipe, a device, or a descriptor of this process, instead of a regular file.

    Raises InputError for a block device or a socket.
    """
    if _descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise InputError(f"the log {path} is a {'disk' if stat.S_ISBLK(mode) else 'socket'}.", ["choose another --log"])
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _opened(path: Path) -> int:
    descriptor = _descriptor(path)
    if descriptor is not None:
        return os.dup(descriptor)  # a new open of a redirected file would write from its beginning
    # A pipe without a reader would block here forever.
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _descriptor(path: Path) -> int | None:
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else _STANDARD.get(str(path))
