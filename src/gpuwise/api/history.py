"""The measurements of `validate`, as JSON lines in $XDG_STATE_HOME/gpuwise/history.jsonl (else ~/.local/state).

Each line is appended as a whole. A damaged line is skipped with a warning, and a folder that is not writable is reported:
the history never fails a command. GPUWISE_NO_CACHE=1 switches it off, like the cache of traces.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gpuwise.atomic import written_whole
from gpuwise.hardware.toml_cache import OFF, switched_off
from gpuwise.plain_files import check_regular, open_regular, parse_json

LIMIT_BYTES = 2 * 2**20  # some two thousand lines; beyond it the older half goes
_TEXTS = ("date", "machine", "chip", "job", "digest", "provenance", "torch", "gpuwise", "openmp")
_SECONDS = ("median_s", "low_s", "high_s", "forecast_s", "forecast_low_s", "forecast_high_s")


@dataclass(frozen=True)
class HistoryEntry:
    """One measurement of one configuration.

    Attributes:
        date: date and time, UTC.
        machine: gpuwise.hardware.detect.machine_key.
        digest: digest of the trace.
        median_s, low_s, high_s: median, 10th and 90th percentile of the step time.
        steps: number of measured steps.
        forecast_s, forecast_low_s, forecast_high_s: the model's forecast with its interval.
        provenance: source of that forecast.
        method: version of the measuring method.
        threads: PyTorch's threads.
        openmp: OMP_NUM_THREADS at that time; "" (default) if it was not set.
        disturbed: whether other programs slowed the machine down. Default False.
    """

    date: str
    machine: str
    chip: str
    job: str
    digest: str
    strategy: Mapping[str, object]
    median_s: float
    low_s: float
    high_s: float
    steps: int
    forecast_s: float
    forecast_low_s: float
    forecast_high_s: float
    provenance: str
    method: int
    threads: int
    openmp: str = ""
    torch: str = ""
    gpuwise: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    disturbed: bool = False

    @classmethod
    def from_dict(cls, data: Any) -> HistoryEntry:
        """An entry from plain types, without unknown fields of later versions. Raises ValueError or TypeError if it is none."""
        entry = cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})
        seconds = [getattr(entry, name) for name in _SECONDS]
        counts = (entry.steps, entry.method, entry.threads)
        if not all(isinstance(getattr(entry, name), str) for name in _TEXTS):
            raise ValueError("a text is none")
        if not all(isinstance(s, float | int) and not isinstance(s, bool) and 0 < s < math.inf for s in seconds):
            raise ValueError("a time is none")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in counts):
            raise ValueError("a count is none")
        if not all(isinstance(table, dict) for table in (entry.strategy, entry.sizes)) or not isinstance(entry.disturbed, bool):
            raise ValueError("a field is of another kind")
        return entry


def path() -> Path:
    """The path of the history, which need not exist."""
    home = os.environ.get("XDG_STATE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.local/state")) / "gpuwise" / "history.jsonl"


def append(entry: HistoryEntry) -> str:
    """Adds an entry. Returns "", or a sentence why it could not be stored."""
    if switched_off():
        return f"nothing is kept in the history, because {OFF} is set"
    target = path()
    try:
        line = json.dumps(asdict(entry), allow_nan=False).encode() + b"\n"
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            check_regular(descriptor, target)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # the last line is incomplete: end it
                line = b"\n" + line
            os.write(descriptor, line)  # one call, so that lines of two processes do not mix
        finally:
            os.close(descriptor)
        if size + len(line) > LIMIT_BYTES:
            _prune(target)
    except (OSError, ValueError) as error:
        return f"the history cannot be kept in {target} ({getattr(error, 'strerror', None) or error})"
    return ""


def entries(containing: str = "") -> list[HistoryEntry]:
    """All readable entries, oldest first, of lines that contain a text. Warns of damaged lines."""
    entries_, damaged = [], 0
    for line in _lines(path()) if not switched_off() else ():
        if containing not in line:
            continue
        try:
            entries_.append(HistoryEntry.from_dict(parse_json(line)))
        except (ValueError, TypeError, KeyError):
            damaged += 1
    if damaged:
        lines = "1 line is" if damaged == 1 else f"{damaged} lines are"
        warnings.warn(f"{lines} damaged in {path()} and skipped", stacklevel=2)
    return entries_


def _lines(file: Path) -> list[str]:
    """The lines of the file; only the end of a file that is too large."""
    try:
        with open_regular(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > 2 * LIMIT_BYTES:
                opened.seek(size - LIMIT_BYTES)
                opened.readline()
            return [line for line in opened.read(2 * LIMIT_BYTES).decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def _prune(target: Path) -> None:
    """Keeps the newer half. A line that another process appends at the same moment may be lost."""
    content = target.read_bytes()
    _, _, kept = content[-(LIMIT_BYTES // 2) :].partition(b"\n")
    with written_whole(target) as file:
        file.write(kept)
