"""A cache of traces on disk: the second forecast of a job needs neither PyTorch nor the job's code.

The key of an entry is the job's argument and sizes, the working folder, Python and every installed package. An entry is valid
as long as every file that was read for the job is unchanged:

- the source files of its modules that no package manager installed,
- every file opened while the job was made and traced (a configuration, say).

Other changes go unnoticed: environment variables, the clock, a network, files that compiled code opens.
GPUWISE_NO_CACHE=1 switches the cache off.

Entries are data: traces in the format of gpuwise.trace.files and JSON. They never name code to import. The cache never
fails a command: it warns and traces again if an entry is unreadable, and warns and goes on if a folder is not writable.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuwise.api.cache_folder import folder, prune
from gpuwise.api.files_read import FilesRead, state_of
from gpuwise.errors import FileFormatError, GpuwiseError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.toml_cache import OFF, switched_off
from gpuwise.plain_files import parse_json, read_regular, reason_of
from gpuwise.strategy import Strategy
from gpuwise.trace import TraceFamily, load, save
from gpuwise.version import __version__

FORMAT = 1  # counted up when an entry changes its form
RECORDING = ("strategy", "notes", "trace", "job", "runtime", "tracing")  # the packages of gpuwise that a recording depends on
LARGEST_NOTE_BYTES = 10_000_000
# Threads and instruction sets decide which kernels a CPU runs, and so the memory inside them.
_KERNELS = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
# A module may have been read any time since the process began, so a file changed after that is not the traced one.
_STARTED_S = time.time()
# Errors of the job itself, which would be raised again.
_REFUSED = (UnsupportedError, PrecisionError, MissingDependencyError)
REFUSALS: dict[str, type[GpuwiseError]] = {kind.code: kind for kind in _REFUSED}


@dataclass(frozen=True)
class JobFacts:
    """Facts of a job that need no tracing.

    Attributes:
        name: the job's.
        tokens_per_sample: tokens in a sample; 1 if samples are no sequences of tokens.
        samples_per_epoch: samples of its data set; None where unknown.
        own_step, clips, averages: as in gpuwise.strategy.StepFacts. Default False.
    """

    name: str
    tokens_per_sample: int
    samples_per_epoch: int | None
    own_step: bool = False
    clips: bool = False
    averages: bool = False


class JobCache:
    """The cache entries of one JOB argument at its sizes.

    Attributes:
        key: hash that names the entries.
        facts: facts of the job; None if there is no entry, or a file of the job has changed.
    """

    def __init__(self, argument: str, sizes: dict[str, int]):
        self.key = _digest("job", argument, sizes, os.getcwd(), _environment())
        self._files: dict[str, str] = {}
        self._read = FilesRead()
        self._warnings: set[str] = set()
        self.facts = self._read_facts()

    @classmethod
    def of(cls, argument: str, sizes: dict[str, int]) -> JobCache | None:
        """The cache of a job; None if the cache is switched off."""
        return None if switched_off() else cls(argument, sizes)

    def reading(self) -> AbstractContextManager[object]:
        """A context in which the job is made and traced. It records the files that are read."""
        return self._read

    def load(self, variant: Strategy, target: str, micro_batch: int | None = None) -> TraceFamily | None:
        """The entry of a variant: its family, or with micro_batch the step recorded at that batch.

        None if there is no entry. Raises the cached error (UnsupportedError, MissingDependencyError), if there is one.
        """
        if self.facts is None:
            return None
        path = self._path(variant, target, micro_batch)
        self._raise_refusal(path.with_suffix(".refused.json"))
        if not path.exists():
            return None
        try:
            family = load(path)
            if not isinstance(family, TraceFamily) or family.header.job != self.facts.name:
                raise FileFormatError(f"{path} is of another job.")
            if not _same_program(family.header.strategy, variant):
                raise FileFormatError(f"{path} is of another strategy.")
        except (FileFormatError, OSError) as error:
            self._warn_ignored(path, error)
            return None
        with suppress(OSError):  # the most recently used entry is removed last
            os.utime(path)
        return family

    def store(
        self,
        result: TraceFamily | GpuwiseError,
        facts: JobFacts,
        variant: Strategy,
        target: str,
        micro_batch: int | None = None,
    ) -> None:
        """Stores a family, or the error that was raised instead. Stores nothing if the job changed while the process ran."""
        read = self._read.states(unchanged_since_s=_STARTED_S)
        if None in read.values():
            return
        files = self._files | {path: state for path, state in read.items() if state is not None}
        if facts != self.facts or files != self._files:
            self.facts, self._files = facts, files
            self._write(self._note, lambda aside: aside.write_text(json.dumps({**asdict(facts), "files": files})))
        path = self._path(variant, target, micro_batch)
        if isinstance(result, TraceFamily):
            self._write(path, partial(save, result))
            with suppress(OSError):
                path.with_suffix(".refused.json").unlink(missing_ok=True)
        elif result.code in REFUSALS:
            text = json.dumps(result.to_dict())
            self._write(path.with_suffix(".refused.json"), lambda aside: aside.write_text(text))
        prune()

    def _read_facts(self) -> JobFacts | None:
        if not self._note.exists():
            return None
        try:
            note = _read_json(self._note)
            files = note.pop("files")
            facts = JobFacts(**note)
            texts = [facts.name, *files, *files.values()]
            counts = [facts.tokens_per_sample, facts.samples_per_epoch or 1]
            switches = [facts.own_step, facts.clips, facts.averages]
            if not all(isinstance(switch, bool) for switch in switches):
                return None
            if not all(isinstance(text, str) for text in texts) or not all(type(n) is int and n > 0 for n in counts):
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

    def _path(self, variant: Strategy, target: str, micro_batch: int | None) -> Path:
        # The memory of CPU kernels depends on threads and instruction sets, so a trace is valid for one setting only.
        machine = [platform.node(), os.cpu_count(), *map(os.environ.get, _KERNELS)] if target == "cpu" else []
        return folder() / f"{_digest(self.key, self._files, variant.to_dict(), target, micro_batch, machine)}.npz"

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


def _same_program(recorded: Strategy, requested: Strategy) -> bool:
    fields = ("recorded_precision", "recompute", "mode", "channels_last")
    return all(getattr(recorded, name) == getattr(requested, name) for name in fields)


def _read_json(path: Path) -> dict[str, Any]:
    content = parse_json(read_regular(path, limit_bytes=LARGEST_NOTE_BYTES))
    if not isinstance(content, dict):
        raise ValueError("it holds no table")
    return content


def _digest(*parts: object) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _environment() -> str:
    """Python, gpuwise, and the name and version of every installed package, in search order."""
    packages: list[str] = []
    for folder_of_packages in sys.path:
        with suppress(OSError):
            packages += sorted(name for name in os.listdir(folder_of_packages or ".") if name.endswith(".dist-info"))
    home = Path(__file__).parents[1]
    sources = [path for name in RECORDING for path in (home / name).rglob("*.py")]
    states = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources)
    return _digest(FORMAT, __version__, states, sys.version, sys.path, packages)
