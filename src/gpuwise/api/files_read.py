"""The files that are read in a context: the Python sources of loaded modules, and every opened file."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from functools import cache
from hashlib import sha256

# A larger file (a data set) is identified by its size and time; reading it would take longer than tracing the job again.
LARGEST_HASHED_BYTES = 32_000_000
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_ELSEWHERE = {"site-packages", "dist-packages", "__pycache__"}  # the last holds compiled copies of sources
_active: set[FilesRead] = set()


class FilesRead:
    """A context that records every file opened inside it. It can be entered again and then continues its record."""

    def __init__(self) -> None:
        self._opened: set[str] = set()

    def __enter__(self) -> FilesRead:
        _listen()
        _active.add(self)
        return self

    def __exit__(self, *args: object) -> None:
        _active.discard(self)

    def note(self, path: object) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            self._opened.add(os.path.abspath(os.fsdecode(path)))

    def states(self, *, unchanged_since_s: float) -> dict[str, str | None]:
        """The state of each file that was read and that no package manager installed.

        These are the opened files and the sources of all loaded modules. The state is None for a file that changed after the
        time in the argument (seconds since 1970).
        """
        sources = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        paths = {os.path.abspath(path) for path in sources if isinstance(path, str)} | self._opened
        states: dict[str, str | None] = {}
        for path in sorted(path for path in paths if not _installed(path)):
            if os.path.isfile(path):
                old = os.stat(path).st_mtime < unchanged_since_s
                states[path] = state_of(path) if old else None
        return states


def state_of(path: str) -> str | None:
    """A digest of a file's content (of size and time if it is large); None if it is no readable file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            return None
        if status.st_size > LARGEST_HASHED_BYTES:
            return f"{status.st_size} bytes at {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except (OSError, ValueError):
        return None


def _installed(path: str) -> bool:
    """Whether a package manager or the system installed a file; package versions identify it."""
    return path.startswith((*_SYSTEM, *_installed_folders())) or not _ELSEWHERE.isdisjoint(path.split(os.sep))


@cache
def _installed_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = {sysconfig.get_path(name) for name in names} | {os.path.dirname(sys.executable)}
    folders.add(os.path.dirname(os.path.dirname(__file__)))  # gpuwise itself
    return tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in folders if folder)


@cache
def _listen() -> None:
    """Installs an audit hook on every open. Python cannot remove the hook; outside a context it does nothing."""
    sys.addaudithook(_on_event)


def _on_event(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _active and _reads(args):
        for active in tuple(_active):
            active.note(args[0])


def _reads(args: tuple[object, ...]) -> bool:
    """Whether open(path, mode, flags) reads; os.open passes flags without a mode."""
    _, mode, flags = args
    if isinstance(mode, str):
        return not set(mode) & set("wxa")
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_CREAT)
