"""record: writes a job's step to a file, which is a JOB where neither its code nor PyTorch is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.sources import source_of
from gpuwise.errors import InputError
from gpuwise.step_settings import DeviceSettings, named_settings, sizes_of, strategy_of
from gpuwise.trace import TraceFamily, save

if TYPE_CHECKING:
    from gpuwise.job import Job


def record(
    job: str | Job,
    path: str | os.PathLike[str],
    **settings: Unpack[DeviceSettings],
) -> TraceFamily:
    """Writes the job's step, at any micro-batch, under one precision (fp32 where None), recompute, optimizer, mode, layout
    and techniques: gpuwise.step_settings has the settings, as for `forecast`.

    Arguments:
        path: ends in .npz; the file is a JOB of every other verb.

    Raises InputError for another ending, and what `forecast` raises.
    """
    target = Path(path).absolute()  # the job may change the working folder
    if target.suffix != ".npz":
        raise InputError(f"a recording is a .npz file, got {str(path)!r}.", [f"-o {Path(path).with_suffix('.npz')}"])
    requested = named_settings(settings, DeviceSettings)
    family = source_of(job, **sizes_of(requested))(strategy_of(requested))
    save(family, target)
    return family
