"""The folder of cached traces, and its size limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpuwise.hardware.toml_cache import cache_home

LIMIT_BYTES = 500_000_000


def folder() -> Path:
    """$XDG_CACHE_HOME/gpuwise/traces, else ~/.cache/gpuwise/traces. It need not exist."""
    return cache_home() / "traces"


def _entries() -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(folder()) as files:
        for entry in files:
            with suppress(OSError):  # removed by another process meanwhile
                yield entry.path, entry.stat(follow_symlinks=False)


def prune() -> None:
    """Removes the least recently used entries until the cache is inside its limit."""
    entries = sorted(_entries(), key=lambda entry: entry[1].st_mtime)
    excess = sum(stat.st_size for _, stat in entries) - LIMIT_BYTES
    for path, stat in entries:
        if excess <= 0:
            break
        with suppress(OSError):
            os.unlink(path)
            excess -= stat.st_size
