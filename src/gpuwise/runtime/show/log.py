"""The log of a run: JSON lines between a header and a summary."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.runs.log_records import begins_as_log
from gpuwise.runtime.show.log_stream import LogStream

WRITE_EVERY_S = 0.25
# Step records are at least LEAST_APART_S apart. After _FULL_RATE records at that rate their distance grows with the age
# of the run, up to MOST_APART_S. A weekend of tiny steps makes about 300,000 records, some 70 MB.
LEAST_APART_S, MOST_APART_S = 0.02, 1.0
_FULL_RATE = 20_000


class StepRecord(NamedTuple):
    """An optimizer step in the log.

    Attributes:
        now_s: end of the step in seconds, on a monotonic clock.
        step: number of the step.
        samples: samples so far.
        epoch: epochs so far; None if unknown.
        loss: loss of the step.
        learning_rate: learning rate of the step.
        step_time_s: duration in seconds, without the wait for data.
        data_s: wait for data in seconds.
        gradient_norm: gradient norm before clipping; None if unknown.
        memory_bytes: memory in use; None if unknown.
        parts: named parts of the loss.
    """

    now_s: float
    step: int
    samples: int
    epoch: float | None
    loss: float
    learning_rate: float
    step_time_s: float
    data_s: float
    gradient_norm: float | None = None
    memory_bytes: int | None = None
    parts: Mapping[str, float] | None = None


class RunLog:
    """Appends records to a file, one line each. Only a crash of the machine can truncate the last line.

    Each record has `record` and `time` (UTC). `record` is "header", "step", "evaluation", "checkpoint", "event",
    "interrupted", "resumed", "summary" or "error". A second run into the same file appends its own header, followed by
    "resumed" if it continues the first run. `open` opens the file, so a job that fails in its first step leaves no file
    behind. As a context manager the log records the error of a failed run and closes.

    Steps are buffered in memory and written every quarter of a second, before any other record, and at the end. A killed
    process loses at most the steps of that time. Steps closer together than LEAST_APART_S share a record, which holds:
        - step, samples, epoch, learning rate and memory of the last step
        - means of the other values, over the finite ones
        - `steps`: number of steps
        - `not_finite`: number of steps without a finite loss
    In a long run the distance of records and writes grows up to MOST_APART_S. Slower steps always have a record each.

    Arguments:
        path: file of the log; with None every call does nothing.
        copy: a pipe or a device that receives every record, too.

    Raises InputError when the path cannot be a log: its folder is missing, or the file is not a log.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, copy: LogStream | None = None):
        self.path, self.copy = None if path is None else Path(path), copy
        self._problem: str | None = None
        self._file: FileIO | None = None
        self._copies = False  # true from `open` to `close`
        self._rows: list[StepRecord] = []  # not written yet
        self._due_s = -math.inf
        self._began_s: float | None = None
        if self.path is not None:
            _check(self.path)

    @property
    def problem(self) -> str | None:
        """The reason for a gap in the log: a disk error, a pipe without a reader, or a deleted file. None without a gap."""
        problems = [self._problem, self.copy and self.copy.problem]
        if self._file is not None and self.path is not None and not _is_open_as(self._file, self.path):
            problems.append(f"the log {self.path} was removed while it was written.")
        return " ".join(problem for problem in problems if problem) or None

    def open(self, header: Mapping[str, object]) -> None:
        """Creates or continues the file and writes the header. Raises InputError when that fails."""
        if self.path is not None:
            try:
                torn = _ends_torn(self.path)
                self._file = FileIO(self.path, "a")  # unbuffered: a line is in the file when write returns
                if torn:
                    self._file.write(b"\n")
            except OSError as error:
                raise InputError(f"cannot write log {self.path}: {error.strerror}.", ["choose another --log"]) from error
        self._copies = self.copy is not None
        self.write("header", header)

    def step(self, record: StepRecord) -> None:
        """Adds a step; call it after each optimizer step."""
        if self._file is None and not self._copies:
            return
        self._rows.append(record)
        if record.now_s + record.step_time_s >= self._due_s:  # the next step may end too late
            self.flush()

    def write(self, record: str, fields: Mapping[str, object]) -> None:
        """Writes one record, after all earlier steps. A full disk ends the log and sets `problem`; training continues."""
        self.flush()
        self._append([_line(record, datetime.now(UTC), fields)])

    def flush(self) -> None:
        """Writes the buffered steps; call it before a long operation."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        now_s, now = rows[-1].now_s, datetime.now(UTC)
        if self._began_s is None:
            self._began_s = rows[0].now_s
        apart_s = min(max(LEAST_APART_S, (now_s - self._began_s) / _FULL_RATE), MOST_APART_S)
        self._due_s = now_s + max(WRITE_EVERY_S, apart_s)
        self._append(
            [
                _line("step", now - timedelta(seconds=now_s - group[-1].now_s), _step_fields(group))
                for group in _grouped(rows, apart_s)
            ]
        )

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GpuwiseError):
            self.write("error", {"code": error.code, "message": error.what})
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            self.write("interrupted", {"at_once": True})
        self.close()

    def close(self) -> None:
        self.flush()
        self._copies = False
        self._end()
        if self.copy is not None:
            self.copy.close()

    def _append(self, lines: Sequence[bytes]) -> None:
        data = left = b"".join(lines)
        if self.copy is not None and self._copies:
            self.copy.write(data)
        try:
            while left and self._file is not None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._problem = f"the log {self.path} ends early: {error.strerror}."
            self._end()

    def _end(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the descriptor may already be closed
                self._file.close()
            self._file = None


def _grouped(rows: Sequence[StepRecord], apart_s: float) -> list[list[StepRecord]]:
    """Groups steps that share a record: those less than apart_s after the first of the group."""
    groups: list[list[StepRecord]] = []
    until_s = -math.inf
    for row in rows:
        if row.now_s >= until_s:
            groups.append([])
            until_s = row.now_s + apart_s
        groups[-1].append(row)
    return groups


def _step_fields(group: Sequence[StepRecord]) -> dict[str, object]:
    last = group[-1]
    losses = [row.loss for row in group if math.isfinite(row.loss)]
    step_time_s, data_s = fmean([row.step_time_s for row in group]), fmean([row.data_s for row in group])
    norms = [row.gradient_norm for row in group if row.gradient_norm is not None]
    fields: dict[str, object] = {
        "step": last.step,
        "samples": last.samples,
        "epoch": last.epoch,
        "loss": fmean(losses) if losses else None,
        "learning_rate": last.learning_rate,
        "step_time_s": _short(step_time_s),
        "data_s": _short(data_s),
        "samples_per_s": _short(last.samples / last.step / max(step_time_s + data_s, 1e-9)),
        "steps": len(group),
    }
    if norms:
        fields["grad_norm"] = _short(fmean(norms))
    if last.parts:
        fields["parts"] = {name: _mean_part(name, group) for name in last.parts}
    if last.memory_bytes is not None:
        fields["memory_bytes"] = last.memory_bytes
    if len(losses) < len(group):
        fields["not_finite"] = len(group) - len(losses)
    return fields


def _mean_part(name: str, group: Sequence[StepRecord]) -> float | None:
    values = [row.parts[name] for row in group if row.parts and math.isfinite(row.parts.get(name, math.nan))]
    return _short(fmean(values)) if values else None


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def _line(record: str, at: datetime, fields: Mapping[str, object]) -> bytes:
    value = {"record": record, "time": at.isoformat(timespec="milliseconds"), **fields}
    try:
        text = _encode(value)
    except ValueError:  # rare, so only records with NaN or infinity are converted
        text = _encode(_without_nan(value))
    return (text + "\n").encode(errors="replace")


def _without_nan(value: object) -> object:
    """Replaces NaN and infinity by null, because JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def _short(value: float) -> float:
    """Rounds to six significant digits; further digits of a time or a norm are noise."""
    return float(f"{value:.6g}")


def _check(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise InputError(f"the log {path} {why}.", ["choose another --log"])
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"the log {path} cannot be written to.", ["choose another --log"])
    if path.exists() and path.stat().st_size and not begins_as_log(path):
        raise InputError(f"{path} exists and is no log of gpuwise; it stays as it is.", ["choose another --log"])


def _is_open_as(file: FileIO, path: Path) -> bool:
    """Whether the path still refers to the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def _ends_torn(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
