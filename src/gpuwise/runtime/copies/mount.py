"""Files on a mount of an object store: new ones written from begin to end, read back, and removed. Nothing else.

Such mounts refuse or fake much of what a disk does: renames (Mountpoint for Amazon S3), appends and writes into the middle
(rclone without a cache), links, locks. They may not know fsync. An upload may fail as late as in close, so its error counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.manifest import read_ordinary
from gpuwise.runtime.checkpoint.tensors_file import Digest, HashedFile, open_ordinary

CHUNK_BYTES = 4 * 2**20  # of one read: between two of them a copy can be given up
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)

Progress = Callable[[], None]  # called after each chunk; it may raise CopyGivenUpError


class CopyGivenUpError(Exception):
    """There is no more time for the copy in progress."""


class MountFiles(Files):
    """The system calls of a copy. `rename` is never called."""

    def make_folder(self, path: Path) -> None:
        """Makes the folders above it, too; it may be there already."""
        os.makedirs(path, exist_ok=True)

    def sync(self, fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise

    def sync_folder(self, path: Path) -> None:
        """On a mount the names need no syncing; what is a disk after all keeps them this way."""
        with suppress(OSError):
            super().sync_folder(path)

    def remove_folder(self, path: Path) -> None:
        """On some mounts an empty folder is gone by itself, on others it is not seen to be empty at once."""
        with suppress(OSError):
            os.rmdir(path)


def copy_file(files: Files, source: Path, target: Path, expected: Digest | None, *, progress: Progress) -> Digest:
    """Copies a file as a new one, hashed on the way. Returns its size and checksum.

    Arguments:
        expected: what the file must be; None for any content.

    Raises FileFormatError where the source cannot be read or is not what is expected, OSError where the copy cannot be written
    or has another size.
    """
    with open_ordinary(source) as original, HashedFile(files, target) as copy:
        while True:
            try:
                chunk = original.read(CHUNK_BYTES)
            except OSError as error:
                raise FileFormatError(f"{source.name} cannot be read ({error.strerror})") from error
            if not chunk:
                break
            copy.write(chunk)
            progress()
    if expected is not None and copy.digest != expected:
        what = "the checksum" if copy.digest.nbytes == expected.nbytes else "the size"
        raise FileFormatError(f"{what} of {source.name} is wrong")
    check_size(target, copy.digest.nbytes)
    return copy.digest


def write_new(files: Files, path: Path, data: bytes) -> Digest:
    """Writes a small file as a new one and reads it back. Raises OSError where it is not there as it was written."""
    with HashedFile(files, path) as file:
        file.write(data)
    try:
        same = read_ordinary(path, max_bytes=len(data)) == data
    except FileFormatError:
        same = False
    if not same:
        raise OSError(errno.EIO, f"{path.name} cannot be read back as it was written", str(path))
    return file.digest


def check_size(path: Path, nbytes: int) -> None:
    """Raises OSError where the file is not there in this size."""
    size = os.lstat(path).st_size
    if size != nbytes:
        raise OSError(errno.EIO, f"{path.name} has {size:,} of {nbytes:,} bytes after it was written", str(path))
