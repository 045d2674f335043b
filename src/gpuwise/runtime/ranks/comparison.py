"""What all ranks must have in common, compared in the first minute: code, versions, job, settings and data."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from gpuwise.errors import InputError, RankLostError
from gpuwise.json_types import Json
from gpuwise.runtime.ranks.ranks import Ranks
from gpuwise.version import __version__

WITHIN_S = 600.0
LEFT_S = 30.0  # for the other ranks when the caller leaves the loop over the steps


def compare(ranks: Ranks, name: str, facts: Callable[[], Mapping[str, Json]]) -> None:
    """Returns on every rank once rank 0 has found the same facts on all of them.

    Arguments:
        name: of this comparison, for the ranks' store.
        facts: returns words for each fact -> its value, as JSON; the same facts on all ranks. Not called for one process.

    Raises InputError on rank 0, and OtherRankError on the others, that names the first rank that differs, and in what.
    """
    if not ranks.several:
        return
    own = dict(facts())
    ranks.post(f"facts/{name}", own)

    def same() -> Json:
        for rank, theirs in enumerate(ranks.collected(f"facts/{name}", within_s=WITHIN_S)):
            if isinstance(theirs, dict):
                _check_same(own, theirs, f"rank {rank} on {ranks.hosts[rank]}", f"rank 0 on {ranks.hosts[0]}")
        return True

    ranks.of_first(f"same/{name}", same)


def _check_same(own: Mapping[str, Json], theirs: Mapping[str, Json], who: str, first: str) -> None:
    for what, value in own.items():
        if theirs.get(what) != value:
            raise InputError(
                f"{who} has another {what} than {first}: "
                f"{_text(theirs.get(what), value)}, not {_text(value, theirs.get(what))}.",
                ["start all ranks with the same command, code and environment"],
            )


def _text(value: Json, other: Json) -> str:
    """Of dicts, the entries that differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{name} {value.get(name)}" for name in {**value, **other} if value.get(name) != other.get(name))
    return str(value)


def software(job_argument: str) -> dict[str, Json]:
    """Versions, and a checksum of the file that the job is in: that of a job on the command line, or the program's own."""
    path, _, _ = job_argument.rpartition(":")
    file = Path(path) if path else Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    checksum = ""
    with suppress(OSError):  # a preset, or an interactive session
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else ""
    return {
        "version of gpuwise": __version__,
        "version of PyTorch": torch.__version__,
        "version of Python": platform.python_version(),
        f"code in {file.name or 'the job'} (its checksum)": checksum,
    }


def check_same_end(ranks: Ranks, step: int) -> None:
    """Raises InputError unless all ranks have left the loop over their steps after the same one."""
    if not ranks.several:
        return
    try:
        steps = ranks.gathered("left", step, within_s=LEFT_S)
    except RankLostError:
        steps = []
    if any(other != step for other in steps) or not steps:
        raise InputError(
            f"rank {ranks.rank} on {ranks.host} has left the loop after step {step:,}, and other ranks have not.",
            ["leave it after the same step on all ranks", "a stop signal to any rank ends all of them, saved"],
        )
