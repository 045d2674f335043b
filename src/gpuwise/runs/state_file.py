"""RUN/state.json: read by wrappers of Slurm, Kubernetes and torchrun, which lose exit codes on the way."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError
from gpuwise.plain_files import parse_json, read_regular, reason_of
from gpuwise.results.run_status import INTERRUPTED, RUNNING, RunStatus, StopReason
from gpuwise.runs.lock import is_locked

STATE_FILE = "state.json"
FORMAT, VERSION = "gpuwise-run-state", 1
MOST_BYTES = 1_000_000  # largest accepted file; a usual one has half a kilobyte
KILLED = StopReason("killed", "its process is gone without a word: it was killed, or its machine was taken away.")


def run_status(run: str | os.PathLike[str]) -> RunStatus:
    """Where the run in a folder stands. Fast: it needs neither PyTorch nor NumPy.

    An attempt that was killed leaves "running" in the file. Its lock on the folder has ended with it, so that it is
    "interrupted" here, with the reason "killed".

    Raises FileFormatError where the folder has no state, or one that is damaged, foreign or of a newer version.
    """
    folder = Path(run)
    try:
        status = read_status(folder)
        # An attempt may have ended between the two looks: what it wrote then counts.
        if status is not None and status.state == RUNNING and not is_locked(folder):
            status = read_status(folder)
    except ValueError as error:
        raise FileFormatError(
            f"{folder / STATE_FILE} is damaged, or not of a run of gpuwise ({error}).",
            ["start the run again: gpuwise train writes it anew"],
        ) from None
    if status is None:
        raise FileFormatError(
            f"there is no {STATE_FILE} in {folder}: no run has begun there.", ["the folder after --run of gpuwise train"]
        )
    if status.state == RUNNING and not is_locked(folder):
        return replace(status, state=INTERRUPTED, reason=KILLED)
    return status


def read_status(folder: Path) -> RunStatus | None:
    """What the file says, None without one. Raises ValueError for a file that is damaged, foreign or newer."""
    try:
        data = parse_json(read_regular(folder / STATE_FILE, limit_bytes=MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(reason_of(error)) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError("it is of another format")
    version = data.get("version")
    if version != VERSION:
        raise ValueError(f"it is of version {version!r}, and this gpuwise reads version {VERSION}")
    return RunStatus.from_dict(data)


def write_status(folder: Path, status: RunStatus) -> None:
    """Replaces the file as a whole, synced to the disk. Raises OSError."""
    content = {"format": FORMAT, "version": VERSION, **status.to_dict()}
    with written_whole(folder / STATE_FILE) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())
