"""Detects a nearly full disk before a save fails on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from gpuwise.runtime.checkpoint.room import needed_bytes
from gpuwise.units import format_bytes

EVERY_S = 10.0


class DiskWatch:
    """Compares the free space of a folder's disk with the size of the next checkpoint.

    `due(now_s)` costs one comparison and returns whether it is time for `look`.

    Attributes:
        full: whether the space was too small at the last check.

    Arguments:
        folder: the folder, which need not exist yet.
        every_s: seconds between two checks.
        free_bytes: returns the free bytes of a folder's disk; for tests.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, every_s: float = EVERY_S, free_bytes: Callable[[Path], int] | None = None
    ) -> None:
        self.full = False
        self._folder, self._every_s, self._free_bytes = Path(folder), every_s, free_bytes or _free_bytes
        self._due_s = float("-inf")

    def due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def look(self, now_s: float, nbytes: int) -> str | None:
        """A sentence when the free space becomes too small, or sufficient again; None if nothing has changed.

        A quota smaller than the free space is not seen.

        Arguments:
            now_s: the current time in seconds.
            nbytes: bytes of the next checkpoint; 0 if unknown.
        """
        self._due_s = now_s + self._every_s
        try:
            free_bytes = self._free_bytes(self._folder)
        except OSError:  # an unreadable disk counts as not full; the save reports the problem
            return None
        wanted_bytes = needed_bytes(nbytes)
        full, before = free_bytes < wanted_bytes, self.full
        self.full = full
        if full and not before:
            return (
                f"the disk of {self._folder} is nearly full: {format_bytes(free_bytes)} free, the next checkpoint needs "
                f"{format_bytes(wanted_bytes)}; until there is room, the last one stands."
            )
        if before and not full:
            return f"the disk of {self._folder} has room again: {format_bytes(free_bytes)} free."
        return None


def _free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
