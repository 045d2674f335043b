"""Records the data of a step with a non-finite loss, so that the step can be reproduced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from gpuwise.atomic import written_whole

NAME = "bad-batch.json"


def write_bad_batch(folder: str | os.PathLike[str], where: Mapping[str, object], loss: float, step: int, seed: int) -> Path:
    """Writes FOLDER/bad-batch.json atomically; it replaces an earlier file.

    Arguments:
        where: identifies the step's data, such as its epoch and the indices of its samples.
        loss: the loss; written as text because JSON has no NaN.
        step: number of the step.
        seed: the run's seed; with `where` it reproduces the batch.

    Raises OSError when the folder is not writable.
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
    """Converts tensors and arrays to lists, mappings to dicts, and other objects to text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, range | set | frozenset) else str(value)
