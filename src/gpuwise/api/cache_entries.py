"""Recordings on disk: the second question about a job needs neither PyTorch nor the job's code.

The key of an entry is the job's argument and sizes, the working folder, Python and every installed package. An entry is valid
as long as every file that was read for the job is unchanged:

- the source files of its modules that no package manager installed,
- every file opened while the job was made and traced (a configuration, say).

Other changes go unnoticed: environment variables, the clock, a network, files that compiled code opens.
GPUWISE_NO_CACHE=1 switches the cache off.

Entries are data: archives of whole numbers and JSON. They never name code to import. The cache never fails a command: it
warns and records again if an entry is unreadable, and warns and goes on if a folder is not writable.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from gpuwise.api.cache_folder import folder, prune
from gpuwise.api.files_read import FilesRead, state_of
from gpuwise.errors import FileFormatError, GpuwiseError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.toml_cache import OFF, switched_off
from gpuwise.plain_files import parse_json, read_regular, reason_of
from gpuwise.version import __version__

FORMAT = 2  # counted up when an entry changes its form
RECORDING = ("strategy", "notes", "trace", "job", "runtime", "tracing")  # the packages of gpuwise that a recording depends on
LARGEST_NOTE_BYTES = 10_000_000
# Threads and instruction sets decide which kernels a CPU runs, and so the memory inside them.
_KERNELS = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
# A module may have been read any time since the process began, so a file changed after that is not the traced one.
_STARTED_S = time.time()
# Errors of the job itself, which would be raised again.
_REFUSED = (UnsupportedError, PrecisionError, MissingDependencyError)
REFUSALS: dict[str, type[GpuwiseError]] = {kind.code: kind for kind in _REFUSED}
_SEAL = "seal"
CacheNote: TypeAlias = dict[str, Any]  # JSON whose values are checked where they are read
Facts = TypeVar("Facts")
Entry = TypeVar("Entry")


class CacheEntries(ABC, Generic[Facts]):
    """The cache entries of one JOB argument at its sizes, of one kind.

    Attributes:
        key: hash that names the entries.
        facts: facts of the job; None if there is no entry, or a file of the job has changed.
    """

    kind: ClassVar[str]
    recording: ClassVar[tuple[str, ...]] = RECORDING

    def __init__(self, argument: str, sizes: Mapping[str, int]):
        self.key = _digest(self.kind, argument, dict(sizes), os.getcwd(), _environment(self.recording))
        self._files: dict[str, str] = {}
        self._read = FilesRead()
        self._warnings: set[str] = set()
        self.facts = self._read_facts()

    @classmethod
    def of(cls, argument: str, sizes: Mapping[str, int]) -> Self | None:
        """The cache of a job; None if the cache is switched off."""
        return None if switched_off() else cls(argument, sizes)

    def reading(self) -> AbstractContextManager[object]:
        """A context in which the job is made and traced. It records the files that are read."""
        return self._read

    @abstractmethod
    def facts_of(self, note: CacheNote) -> Facts:
        """The facts in a note. Raises ValueError, TypeError or KeyError where they make no sense."""

    @abstractmethod
    def note_of(self, facts: Facts) -> dict[str, object]:
        """The facts as JSON has them."""

    def entry(self, parts: tuple[object, ...], target: str, load: Callable[[Path], Entry]) -> Entry | None:
        """What `load` makes of an entry's file; None if there is none, or it is unreadable.

        Raises the cached error (UnsupportedError, MissingDependencyError), if there is one.
        """
        if self.facts is None:
            return None
        path = self._path(parts, target)
        self._raise_refusal(path.with_suffix(".refused.json"))
        if not path.exists():
            return None
        try:
            entry = load(path)
            if _name_in(path) != path.stem:
                raise FileFormatError(f"{path} is a copy of another entry.")
        except (FileFormatError, OSError, zipfile.BadZipFile) as error:
            self._warn_ignored(path, error)
            return None
        with suppress(OSError):  # the most recently used entry is removed last
            os.utime(path)
        return entry

    def keep_facts(self, facts: Facts) -> bool:
        """Stores the facts. Returns whether they are those of now: not if a file of the job changed meanwhile."""
        read = self._read.states(unchanged_since_s=_STARTED_S)
        if None in read.values():
            return False
        files = self._files | {path: state for path, state in read.items() if state is not None}
        if facts != self.facts or files != self._files:
            self.facts, self._files = facts, files
            self._write_json(self._note, {**self.note_of(facts), "files": files})
        return True

    def keep(
        self, result: Callable[[Path], object] | GpuwiseError, facts: Facts, parts: tuple[object, ...], target: str
    ) -> None:
        """Stores what `result` writes, or the error that was raised instead. Stores nothing if the job changed meanwhile."""
        if not self.keep_facts(facts):
            return
        path = self._path(parts, target)
        if not isinstance(result, GpuwiseError):

            def write(aside: Path) -> None:
                result(aside)
                _put_name(aside, path.stem)

            self._write(path, write)
            with suppress(OSError):
                path.with_suffix(".refused.json").unlink(missing_ok=True)
        elif result.code in REFUSALS:
            self._write_json(path.with_suffix(".refused.json"), result.to_dict())
        prune()

    def _read_facts(self) -> Facts | None:
        if not self._note.exists():
            return None
        try:
            note = _read_json(self._note)
            files = note.pop("files")
            facts = self.facts_of(note)
            if not all(isinstance(text, str) for text in (*files, *files.values())):
                raise ValueError("a field has the wrong type")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._warn_ignored(self._note, error)
            return None
        if any(state_of(path) != state for path, state in files.items()):
            return None
        self._files = files
        return facts

    @property
    def _note(self) -> Path:
        return folder() / f"{self.key}.json"

    def _path(self, parts: tuple[object, ...], target: str) -> Path:
        # The memory of CPU kernels depends on threads and instruction sets, so a trace is valid for one setting only.
        machine = [platform.node(), os.cpu_count(), *map(os.environ.get, _KERNELS)] if target == "cpu" else []
        return folder() / f"{_digest(self.key, self._files, parts, target, machine)}.npz"

    def _raise_refusal(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            refusal = _read_json(path)["error"]
            ways_out = refusal["ways_out"]
            if not all(isinstance(text, str) for text in (refusal["message"], *ways_out)):
                raise ValueError("a field has the wrong type")
            error = REFUSALS[refusal["code"]](refusal["message"], ways_out)
        except (OSError, ValueError, TypeError, KeyError) as problem:
            self._warn_ignored(path, problem)
            return
        raise error

    def _write_json(self, path: Path, content: CacheNote) -> None:
        text = sealed(path.name, content)
        self._write(path, lambda aside: aside.write_text(text))

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Writes a temporary file and renames it, so that other processes see the whole file or nothing."""
        aside = path.with_name(f".{os.getpid()}.{threading.get_ident()}.{path.name}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                write(aside)
                os.replace(aside, path)
            finally:
                aside.unlink(missing_ok=True)
        except (OSError, FileFormatError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            self._warn(f"traces cannot be kept in {path.parent} ({str(reason).rstrip('.')}); {OFF}=1 stops trying")

    def _warn_ignored(self, path: Path, error: Exception) -> None:
        reason = error.what if isinstance(error, GpuwiseError) else f"{type(error).__name__}: {reason_of(error)}"
        self._warn(f"the cached {path} is ignored and made again: {reason.replace(f'{path} ', 'it ')}")

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            warnings.warn(text, stacklevel=2)


def sealed(name: str, content: CacheNote) -> str:
    """A JSON entry's text, with a digest of its file's name and its content."""
    return json.dumps({**content, _SEAL: _digest(name, content)})


def _read_json(path: Path) -> CacheNote:
    content = parse_json(read_regular(path, limit_bytes=LARGEST_NOTE_BYTES))
    if not isinstance(content, dict):
        raise ValueError("it holds no table")
    if content.pop(_SEAL, None) != _digest(path.name, content):
        raise ValueError("it was changed, or is a copy of another entry")
    return content


def _put_name(path: Path, name: str) -> None:
    """Writes the name of its entry into an archive."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = name.encode()


def _name_in(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.comment.decode(errors="replace")


def _digest(*parts: object) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _environment(recording: tuple[str, ...]) -> str:
    """Python, the sources of these packages of gpuwise, and every installed package with its version, in search order."""
    packages: list[str] = []
    for folder_of_packages in sys.path:
        with suppress(OSError):
            packages += sorted(name for name in os.listdir(folder_of_packages or ".") if name.endswith(".dist-info"))
    home = Path(__file__).parents[1]
    sources = [path for name in recording for path in (home / name).rglob("*.py")]
    states = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources)
    return _digest(FORMAT, __version__, states, sys.version, sys.path, packages)
