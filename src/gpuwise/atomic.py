"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: str | os.PathLike[str], *, synced: bool = True) -> Iterator[BinaryIO]:
    """A file to write bytes to. It takes its name once it is complete; an older file of that name stays until then.

    Arguments:
        path: the file's.
        synced: whether to wait until it is on the disk, so that a power failure leaves the old file or the new one. True by
            default.

    Raises OSError where the folder cannot be written to, the disk is full, or the path is a device, which the file would
    replace.
    """
    target = Path(path)
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a regular file", str(path))
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            if synced:
                os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
