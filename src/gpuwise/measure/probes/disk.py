"""Sequential writing and reading of the disk that gpuwise keeps its files on: what checkpoints and data come to."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch

from gpuwise.hardware.toml_cache import cache_home
from gpuwise.measure.timing import summary
from gpuwise.results.measurement import MeasuredRow

PIECE_BYTES = 2**24
LARGEST_BYTES = 2**28
SHARE_OF_FREE = 10
FEWEST_PIECES = 3


def rows(
    budget_s: float, device: torch.device, say: Callable[[str], None], *, folder: Path | None = None
) -> Iterator[MeasuredRow]:
    """Rows of group "disk": "write", each piece forced out to the disk, and "read". sizes["bytes"]: of a piece.

    Arguments:
        folder: gpuwise's cache folder by default.

    The file has no name where the system can do that, else loses it at once: nothing is left however this ends.
    """
    folder = folder or cache_home()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        pieces = min(LARGEST_BYTES, shutil.disk_usage(folder).free // SHARE_OF_FREE) // PIECE_BYTES
        if pieces < FEWEST_PIECES:
            say(f"the disk was left out: too little is free in {folder}.")
            return
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            yield from _rows(file.fileno(), pieces, budget_s / 2, say)
    except OSError as error:
        say(f"the disk was left out: {folder}: {error.strerror or error}")


def _rows(fd: int, most: int, budget_s: float, say: Callable[[str], None]) -> Iterator[MeasuredRow]:
    # Random and with a number in each block: a file system that compresses, or stores equal blocks once, gains nothing.
    piece = mmap.mmap(-1, PIECE_BYTES)
    piece.write(random.Random(0).randbytes(PIECE_BYTES))
    written: list[float] = []
    began = time.perf_counter()
    while len(written) < most and (len(written) < FEWEST_PIECES or time.perf_counter() - began < budget_s):
        _number(piece, len(written))
        start = time.perf_counter()
        _write(fd, piece)
        os.fsync(fd)
        written.append(time.perf_counter() - start)
    sizes = {"bytes": PIECE_BYTES, "pieces": len(written)}
    right = os.fstat(fd).st_size == len(written) * PIECE_BYTES
    yield MeasuredRow("disk", "write", summary(written), sizes=sizes, bytes=PIECE_BYTES, verified=right)
    if not _forgotten(fd):
        say("the file stays in the page cache here: what was read of it comes from memory, not from the disk.")
    os.lseek(fd, 0, os.SEEK_SET)
    read, right, found = [], True, mmap.mmap(-1, PIECE_BYTES)
    found.write(bytes(PIECE_BYTES))  # the system gives memory at the first touch, which is not the disk's time
    for place in range(len(written)):
        start = time.perf_counter()
        right &= os.readv(fd, [found]) == PIECE_BYTES
        read.append(time.perf_counter() - start)
        _number(piece, place)
        right &= found[:] == piece[:]
        if place + 1 >= FEWEST_PIECES and sum(read) > budget_s:
            break
    yield MeasuredRow("disk", "read", summary(read), sizes={**sizes, "pieces": len(read)}, bytes=PIECE_BYTES, verified=right)


def _number(piece: mmap.mmap, place: int) -> None:
    """Makes every block of 4 KiB of the piece its own."""
    for start in range(0, PIECE_BYTES, 4096):
        piece[start : start + 4] = (place * PIECE_BYTES + start).to_bytes(4, "little")


def _write(fd: int, piece: mmap.mmap) -> None:
    with memoryview(piece) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


def _forgotten(fd: int) -> bool:
    """Asks the system to drop the file from its page cache. Returns whether it did, True where that cannot be told."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if hasattr(os, "RWF_NOWAIT"):
        with suppress(OSError):  # would have to wait for the disk (EAGAIN), or the file system does not say
            return os.preadv(fd, [bytearray(4096)], 0, os.RWF_NOWAIT) == 0
    return True
