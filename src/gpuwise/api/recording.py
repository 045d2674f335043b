"""record: a job's step written to a file, which then stands for the job where neither its code nor PyTorch is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.api.forecasting import check_mode, checked_techniques
from gpuwise.api.sources import source_of
from gpuwise.errors import InputError
from gpuwise.strategy import Strategy
from gpuwise.trace import TraceFamily, save

if TYPE_CHECKING:
    from gpuwise.job import Job


def record(
    job: str | Job,
    path: str | os.PathLike[str],
    *,
    precision: str | None = None,
    recompute: str | None = None,
    optimizer: str | None = None,
    mode: str | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    channels_last: bool | None = None,
    **techniques: Any,
) -> TraceFamily:
    """Writes the job's step, at any micro-batch, under one precision (fp32 where None), recompute, optimizer, mode, layout
    and techniques (as for `forecast`).

    Arguments:
        path: ends in .npz; the file is a JOB of every other verb.

    Raises InputError for another ending, and what `forecast` raises.
    """
    target = Path(path).absolute()  # the job may change the working folder
    if target.suffix != ".npz":
        raise InputError(f"a recording is a .npz file, got {str(path)!r}.", [f"-o {Path(path).with_suffix('.npz')}"])
    check_mode(mode, accumulate=None, recompute=recompute, optimizer=optimizer, **techniques)
    strategy = Strategy(precision or "fp32", recompute=recompute or "none", optimizer=optimizer, mode=mode or "train",
                        channels_last=channels_last or False, **checked_techniques(techniques))  # fmt: skip
    family = source_of(job, seq_len=seq_len, image_size=image_size)(strategy)
    save(family, target)
    return family
