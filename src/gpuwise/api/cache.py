"""Traces of the user's jobs, kept on disk: asked again, they are answered without PyTorch and without running the job.

An entry is found by what was asked (the job's argument and sizes, the folder it is run in, Python and every installed
package) and holds only as long as every file that was read for the job stays as it was: the source files of its modules
that no package manager installed, and every file opened while the job was made and traced (a configuration, say). What
leaves no such mark cannot be noticed: environment variables, the clock, a network, files that compiled code opens.
GPUWISE_NO_CACHE=1 switches the cache off.

Entries are data: traces in the format of gpuwise.trace.files and JSON. Nothing in them names code to import. The cache
never fails a command: an entry that cannot be read is told and made again, a folder that cannot be written is told once.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuwise.api.files_read import FilesRead, state_of
from gpuwise.errors import FileFormatError, GpuwiseError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.toml_cache import OFF, cache_home, switched_off
from gpuwise.plain_files import parse_json, read_regular, reason_of
from gpuwise.strategy import Strategy
from gpuwise.trace import TraceFamily, load, save
from gpuwise.version import __version__

FORMAT = 1  # counted up when an entry changes its form
RECORDING = ("strategy", "trace", "job", "runtime", "tracing")  # the parts of gpuwise that make a recording
LIMIT_BYTES = 500_000_000
LARGEST_NOTE_BYTES = 10_000_000
# What decides which kernels a CPU runs, and so what they hold inside: threads and instruction sets.
_KERNELS = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
# A module may have been read any time since the process began: a file changed after that is not what was traced.
_STARTED_S = time.time()
# What is raised of a job as it is, and is as true the next time.
_REFUSED = (UnsupportedError, PrecisionError, MissingDependencyError)
REFUSALS: dict[str, type[GpuwiseError]] = {kind.code: kind for kind in _REFUSED}


@dataclass(frozen=True)
class JobFacts:
    """What is asked of a job that needs no tracing.

    Attributes:
        name: the job's.
        tokens_per_sample: tokens of a sample; 1 where samples are no sequences of tokens.
        samples_per_epoch: samples of its data set. None where unknown.
        own_step, clips, averages: as in gpuwise.strategy.StepFacts. Default False.
    """

    name: str
    tokens_per_sample: int
    samples_per_epoch: int | None
    own_step: bool = False
    clips: bool = False
    averages: bool = False


class JobCache:
    """The entries of one job argument at given sizes.

    facts: None where the job is not known, or no longer as it was. reading: a context in which the job is made and
    traced, so that the files it reads are noted.
    """

    def __init__(self, argument: str, sizes: dict[str, int]):
        self.key = _digest("job", argument, sizes, os.getcwd(), _environment())
        self._files: dict[str, str] = {}
        self._read = FilesRead()
        self._told: set[str] = set()
        self.facts = self._known()

    @classmethod
    def of(cls, argument: str, sizes: dict[str, int]) -> JobCache | None:
        """None where the cache is switched off."""
        return None if switched_off() else cls(argument, sizes)

    def reading(self) -> AbstractContextManager[object]:
        return self._read

    def load(self, variant: Strategy, target: str, micro_batch: int | None = None) -> TraceFamily | None:
        """What is kept of a variant: its family, or with micro_batch the step recorded at that batch alone.

        Raises the refusal (UnsupportedError, MissingDependencyError) that is kept.
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
            self._ignored(path, error)
            return None
        with suppress(OSError):  # what was used last is removed last
            os.utime(path)
        return family

    def store(
        self,
        made: TraceFamily | GpuwiseError,
        facts: JobFacts,
        variant: Strategy,
        target: str,
        micro_batch: int | None = None,
    ) -> None:
        """Keeps what was traced, or why it was refused. Nothing is kept of a job that changed while the process ran."""
        files = self._files | self._read.states(unchanged_since_s=_STARTED_S)
        if None in files.values():
            return
        if facts != self.facts or files != self._files:
            self.facts, self._files = facts, files
            self._write(self._note, lambda aside: aside.write_text(json.dumps({**asdict(facts), "files": files})))
        path = self._path(variant, target, micro_batch)
        if isinstance(made, TraceFamily):
            self._write(path, partial(save, made))
            with suppress(OSError):
                path.with_suffix(".refused.json").unlink(missing_ok=True)
        elif made.code in REFUSALS:
            text = json.dumps(made.to_dict())
            self._write(path.with_suffix(".refused.json"), lambda aside: aside.write_text(text))
        _prune()

    def _known(self) -> JobFacts | None:
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
            self._ignored(self._note, error)
            return None
        if any(state_of(path) != state for path, state in files.items()):
            return None
        self._files = files
        return facts

    @property
    def _note(self) -> Path:
        return folder() / f"{self.key}.json"

    def _path(self, variant: Strategy, target: str, micro_batch: int | None) -> Path:
        # A CPU's kernels take memory by thread and by instruction set: what is traced for one is not for another.
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
            self._ignored(path, problem)
            return
        raise error

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Writes aside and renames, so that a reader, or another process that writes the same, sees all or nothing."""
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
            self._tell(f"traces cannot be kept in {path.parent} ({str(reason).rstrip('.')}); {OFF}=1 stops trying")

    def _ignored(self, path: Path, error: Exception) -> None:
        reason = error.what if isinstance(error, GpuwiseError) else f"{type(error).__name__}: {reason_of(error)}"
        self._tell(f"the cached {path} is ignored and made again: {reason.replace(f'{path} ', 'it ')}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, stacklevel=2)


def folder() -> Path:
    """$XDG_CACHE_HOME/gpuwise/traces, else ~/.cache/gpuwise/traces. It need not exist."""
    return cache_home() / "traces"


def size_bytes() -> int:
    """Bytes that the cache takes on disk now."""
    return sum(stat.st_size for _, stat in _entries())


def _entries() -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(folder()) as found:
        for entry in found:
            with suppress(OSError):  # removed by another process meanwhile
                yield entry.path, entry.stat(follow_symlinks=False)


def _prune() -> None:
    """Removes what was used longest ago until the cache is inside its limit."""
    entries = sorted(_entries(), key=lambda entry: entry[1].st_mtime)
    excess = sum(stat.st_size for _, stat in entries) - LIMIT_BYTES
    for path, stat in entries:
        if excess <= 0:
            break
        with suppress(OSError):
            os.unlink(path)
            excess -= stat.st_size


def _same_program(recorded: Strategy, asked: Strategy) -> bool:
    fields = ("recorded_precision", "recompute", "mode", "channels_last")
    return all(getattr(recorded, name) == getattr(asked, name) for name in fields)


def _read_json(path: Path) -> dict[str, Any]:
    found = parse_json(read_regular(path, limit_bytes=LARGEST_NOTE_BYTES))
    if not isinstance(found, dict):
        raise ValueError("it holds no table")
    return found


def _digest(*parts: Any) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _environment() -> str:
    """Python, gpuwise, and the name and version of every package installed, in the order they are found."""
    packages: list[str] = []
    for place in sys.path:
        with suppress(OSError):
            packages += sorted(name for name in os.listdir(place or ".") if name.endswith(".dist-info"))
    home = Path(__file__).parents[1]
    sources = [path for name in RECORDING for path in (home / name).rglob("*.py")]
    states = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources)
    return _digest(FORMAT, __version__, states, sys.version, sys.path, packages)
