"""The log of a run: JSON lines, one record an optimizer step, between a header and a summary."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from gpuwise.errors import GpuwiseError, InputError


class RunLog:
    """Appends records to a file; a record is one line, written whole or, when the machine dies, cut at the very end.

    Each record has `record` and `time` (UTC). `record` is "header", "step", "interrupted", "summary" or "error". A
    second run into the same file adds its own header: nothing that was logged is lost. The file is opened by `open`,
    not before, so that a job that fails in its first step leaves nothing behind. With path None every call does
    nothing. As a context manager it notes how a run failed, and closes.

    Raises InputError at once when the path cannot be a log: a missing folder, or a file that is something else.
    """

    def __init__(self, path: str | os.PathLike[str] | None):
        self.path = None if path is None else Path(path)
        self.problem: str | None = None  # why logging stopped, when the disk refused
        self._file: FileIO | None = None
        if self.path is not None:
            _check(self.path)

    def open(self, header: dict[str, Any]) -> None:
        """Creates the file, or continues it, and writes the header. Raises InputError when that is not possible."""
        if self.path is None:
            return
        try:
            torn = _ends_torn(self.path)
            self._file = FileIO(self.path, "a")  # unbuffered: a line is in the file when write returns
            if torn:
                self._file.write(b"\n")
        except OSError as error:
            raise InputError(f"cannot write log {self.path}: {error.strerror}.", ["choose another --log"]) from error
        self.write("header", header)

    def write(self, record: str, fields: dict[str, Any]) -> None:
        """One line. A full disk ends the log, with `problem` set, and not the training."""
        if self._file is None:
            return
        line = {"record": record, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
        try:
            self._file.write((_dumps(line) + "\n").encode())
        except OSError as error:
            self.problem = f"the log {self.path} ends early: {error.strerror}."
            self.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GpuwiseError):
            self.write("error", {"code": error.code, "message": error.what})
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            self.write("interrupted", {"at_once": True})
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All records of a log, a torn last line left out. Raises InputError when the file is not a log."""
    _check(Path(path))
    records = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:  # what a killed process was writing
            continue
    return records


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def _dumps(value: dict[str, Any]) -> str:
    try:
        return _encode(value)
    except ValueError:  # rare, so the common record pays nothing for it
        return _encode(_without_nan(value))


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for both."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def _check(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise InputError(f"the log {path} {why}.", ["choose another --log"])
    if path.exists() and path.stat().st_size:
        try:
            with path.open("rb") as file:
                first = json.loads(file.readline(1_000_000))
        except (ValueError, OSError):  # not text, not JSON, not readable
            first = None
        if not isinstance(first, dict) or first.get("record") != "header":
            raise InputError(f"{path} exists and is no log of gpuwise; it stays as it is.", ["choose another --log"])


def _ends_torn(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
