"""The system calls of a save, in one class, so that a test can count, refuse or delay them, or end the process at one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# Filesystems that cannot sync a folder (some network and user-space ones) answer with one of these.
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP)


class Files:
    """Everything that changes the disk while a checkpoint is written or removed. Each method is one system call, but for
    `write`, which goes on until all is written, and `sync_folder`. All raise OSError."""

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def create(self, path: Path) -> int:
        """A new file, open for writing; there must be none of that name."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, fd: int, data: memoryview) -> None:
        while data:
            data = data[os.write(fd, data) :]

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def sync_folder(self, path: Path) -> None:
        """Makes the names in a folder durable, as `sync` does with the contents of a file."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC_FOLDERS:
                raise
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        os.rmdir(path)

    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def free_bytes(self, folder: Path) -> int:
        """Bytes that an unprivileged user can still write to the filesystem of a folder."""
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize
