"""record: writes a job's step to a file, which serves as a JOB without the job's code and without PyTorch."""

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
    """Writes the job's step to a file that covers any micro-batch.

    It covers one precision (fp32 by default), recompute mode, optimizer, mode, layout and set of techniques. The settings are
    those of `forecast` (gpuwise.step_settings).

    Arguments:
        path: path that ends in .npz. Every other verb takes the file as a JOB.

    Raises InputError for another suffix, and the errors of `forecast`.
    """
    target = Path(path).absolute()  # the job may change the working folder
    if target.suffix != ".npz":
        raise InputError(f"a recording is a .npz file, got {str(path)!r}.", [f"-o {Path(path).with_suffix('.npz')}"])
    requested = named_settings(settings, DeviceSettings)
    family = source_of(job, **sizes_of(requested))(strategy_of(requested))
    save(family, target)
    return family
