"""Default settings of `train` on this machine's CPU: gpuwise.plan.cpu.choice applied to the job's own traces."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.plan.cpu.choice import CpuChoice, Price, choose
from gpuwise.strategy import Strategy

if TYPE_CHECKING:
    from gpuwise.job import Job


def cpu_settings(
    job: str | Job | StepSource,
    chip: Chip,
    start: Strategy,
    *,
    fixed: Collection[str] = (),
    steps: float | None = None,
    capacity_bytes: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    history: bool = True,
) -> CpuChoice:
    """The fastest precision, layout and compilation of a job on the CPU of this machine, with reasons and the forecast.

    Arguments:
        chip: chip of this machine.
        start: strategy with every field that is not chosen here.
        fixed: the fields among "precision", "channels_last" and "compile" that the user has set; `start` has their values.
        steps: optimizer steps of the run; None (default) where unknown.
        history: whether to take step times that `validate` measured on this machine. Default True.

    Raises the errors of tracing and pricing `start`.
    """
    source = job if isinstance(job, StepSource) else source_of(job, seq_len=seq_len, image_size=image_size)
    own = own_price(source, chip, capacity_bytes, history=history)
    return choose(own, start, chip, fixed=fixed, steps=steps, compiler=has_compiler())


def own_price(source: StepSource, chip: Chip, capacity_bytes: int | None, *, history: bool = True) -> Price:
    """Prices steps of a job on this machine's CPU, traced with its kernels. Arguments as for `cpu_settings`."""
    from gpuwise.api.step_price import step_price

    return partial(step_price, source.with_own_kernels(), Cluster(chip, memory_bytes=capacity_bytes), history=history)


def has_compiler() -> bool:
    """Whether torch.compile can work on a CPU: it needs a C++ compiler and the headers of Python."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()
