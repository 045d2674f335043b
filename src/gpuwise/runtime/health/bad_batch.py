"""Where a loss that is no number came from: which data, so that the step can be looked at again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from gpuwise.atomic import written_whole

NAME = "bad-batch.json"


def write_bad_batch(folder: str | os.PathLike[str], where: Mapping[str, object], loss: float, step: int, seed: int) -> Path:
    """Writes FOLDER/bad-batch.json, whole, in place of an earlier one.

    Arguments:
        where: what names the step's data, such as its epoch and the indices of its samples.
        loss: written as text, for JSON has no NaN. seed: the run's; with `where` it gives the very same batch.

    Raises OSError where the folder cannot be written to.
    """
    path = Path(folder) / NAME
    record = {
        "step": step,
        "loss": str(loss),
        "seed": seed,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "where": where,
    }
    with written_whole(path) as file:
        file.write(json.dumps(record, default=_plain, indent=1).encode() + b"\n")
    return path


def _plain(value: object) -> object:
    """Tensors and arrays as lists, mappings as dicts, what else there may be as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, range | set | frozenset) else str(value)
