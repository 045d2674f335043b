"""The records of a run's log, read without PyTorch. gpuwise.runtime.show.log writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.json_types import Json
from gpuwise.plain_files import open_regular, reason_of

HEADER = b'{"record": "header"'  # first bytes of a log


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Json]]:
    """All records of a log without truncated lines. Raises InputError when the file cannot be read, or is no log."""
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"the log {path} cannot be read: {reason_of(error)}.", ["choose another --log"]) from None
    if content and not _is_header(content[: len(HEADER)]):
        raise InputError(f"{path} is no log of gpuwise.", ["choose another --log"])
    records = map(_parsed, content.split(b"\n"))
    return [record for record in records if record is not None]


def begins_as_log(path: Path) -> bool:
    """Whether a file begins as a log does."""
    try:
        with path.open("rb") as file:
            return _is_header(file.read(len(HEADER)))
    except OSError:
        return False


def _is_header(first: bytes) -> bool:
    """A header may be truncated, for example by a full disk."""
    return bool(first) and HEADER.startswith(first.rstrip(b"\n"))


def _parsed(line: bytes) -> dict[str, Json] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # a truncated line of a killed process; not text, not JSON
        return None
    return record if isinstance(record, dict) else None
