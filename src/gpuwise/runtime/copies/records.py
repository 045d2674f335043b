"""Records: what another machine needs beside a checkpoint to go on with a run and to report it.

Each is a new folder, FOLDER/records/00000007, complete by its record.json, which is written last: a file that grows or changes,
such as the log, is never written twice under one name.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError
from gpuwise.plain_files import parse_json, read_regular
from gpuwise.runtime.checkpoint import Files
from gpuwise.runtime.checkpoint.tensors_file import Digest, check, open_ordinary
from gpuwise.runtime.copies.mount import Progress, copy_file, write_new

RECORD, STATE = "record.json", "state.json"
RUN, LOG = "run.json", "log.jsonl"
FILES = (RUN, LOG, "report.html", STATE)  # of a run's folder, as far as they are there
FORMAT, VERSION = "gpuwise-record", 1
KEEP = 2
MAX_BYTES = 100_000
_NUMBER = re.compile(r"\d{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def write_record(files: Files, run: Path, folder: Path, *, progress: Progress) -> None:
    """Copies what the folder of a run has of FILES, then removes older records, and last copies state.json to FOLDER itself.

    Arguments:
        run: folder of the run. folder: FOLDER.

    Raises OSError, and FileFormatError for a file that cannot be read.
    """
    numbers = _numbers(files, folder)
    target = folder / "records" / f"{1 + max(numbers, default=0):08d}"
    files.make_folder(target)
    digests = {
        name: copy_file(files, run / name, target / name, None, progress=progress)
        for name in FILES
        if (run / name).is_file() and not (run / name).is_symlink()
    }
    listed = {name: {"nbytes": digest.nbytes, "sha256": digest.sha256} for name, digest in digests.items()}
    write_new(files, target / RECORD, json.dumps({"format": FORMAT, "version": VERSION, "files": listed}).encode())
    for number in sorted(numbers)[: -(KEEP - 1)]:
        with suppress(OSError):  # of a mount that removes nothing
            _remove(files, folder / "records" / f"{number:08d}")
    if STATE in digests:
        with suppress(FileNotFoundError):
            files.remove(folder / STATE)
        copy_file(files, target / STATE, folder / STATE, digests[STATE], progress=progress)


def newest_record(files: Files, folder: Path) -> Path | None:
    """The folder of the newest complete record, its files verified; None without one. Raises OSError."""
    for number in sorted(_numbers(files, folder), reverse=True):
        path = folder / "records" / f"{number:08d}"
        with suppress(FileFormatError):
            for name, digest in _listed(path).items():
                check(path / name, digest)
            return path
    return None


def take_over(record: Path, run: Path) -> None:
    """Puts the files of a record into the folder of a run: those that it lacks, and the log where that of the record is longer.

    Raises OSError, leaving each file as it was or whole.
    """
    for name in FILES:
        source, target = record / name, run / name
        if source.is_file() and (not target.exists() or (name == LOG and _size(source) > _size(target))):
            with open_ordinary(source) as original, written_whole(target) as copy:
                while chunk := original.read(2**20):
                    copy.write(chunk)


def same_run(record: Path, run: Path) -> bool:
    """Whether run.json, which says how a run has ended, is the same in a record and a run's folder. Raises OSError."""
    return (record / RUN).is_file() and (record / RUN).read_bytes() == (run / RUN).read_bytes()


def _numbers(files: Files, folder: Path) -> list[int]:
    try:
        return [int(name) for name in files.names(folder / "records") if _NUMBER.fullmatch(name)]
    except FileNotFoundError:
        return []


def _listed(record: Path) -> dict[str, Digest]:
    """The files of a record. Raises FileFormatError where it is incomplete."""
    try:
        content = parse_json(read_regular(record / RECORD, limit_bytes=MAX_BYTES))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{record / RECORD} cannot be read ({error})") from None
    files = content.get("files") if isinstance(content, dict) and content.get("format") == FORMAT else None
    if not isinstance(files, dict):
        raise FileFormatError(f"{record / RECORD} is no record")
    return {name: _digest(name, value) for name, value in files.items() if name in FILES}


def _digest(name: str, value: object) -> Digest:
    nbytes, sha256 = (value.get("nbytes"), value.get("sha256")) if isinstance(value, dict) else (None, None)
    if type(nbytes) is not int or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise FileFormatError(f"{RECORD} has no size and checksum of {name}")
    return Digest(nbytes, sha256)


def _remove(files: Files, record: Path) -> None:
    for name in sorted(files.names(record), key=lambda name: name != RECORD):
        if name in (*FILES, RECORD):
            files.remove(record / name)
    files.remove_folder(record)


def _size(path: Path) -> int:
    return os.stat(path).st_size
