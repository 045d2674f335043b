"""What `train` runs with on this machine's CPU where the user says nothing: gpuwise.plan.cpu_choice on the job's own traces."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import Source
from gpuwise.api.sources import source_of
from gpuwise.cost import Forecast, price
from gpuwise.hardware.types import Chip
from gpuwise.plan.cpu_choice import CpuChoice, choose
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.sharded import data_parallel, recorded_as

if TYPE_CHECKING:
    from gpuwise.job import Job

COMPILERS = ("g++", "clang++", "c++")


def cpu_settings(job: str | Job | Source, chip: Chip, start: Strategy, *, given: Collection[str] = (),
                 steps: float | None = None, capacity_bytes: int | None = None, seq_len: int | None = None,
                 image_size: int | None = None, history: bool = True) -> CpuChoice:  # fmt: skip
    """The fastest precision, layout and compilation of a job on the CPU of this machine, with reasons and the forecast.

    Arguments:
        chip: of this machine. start: everything that is not chosen here. given: of "precision", "channels_last" and
            "compile", what the user has said. steps: of the run, None where unknown.
        history: a step that `validate` has measured on this machine counts as measured.

    Raises what tracing and pricing `start` raises.
    """
    source = job if isinstance(job, Source) else source_of(job, seq_len=seq_len, image_size=image_size)
    found = partial(_priced, source.with_own_kernels(), chip, capacity_bytes, history)
    return choose(found, start, chip, given=given, steps=steps, compiler=has_compiler())


def own_traces(source: Source) -> Callable[[Strategy], Trace]:
    """The job's traces with the kernels of this CPU, for `gpuwise.plan.search.plan`."""
    return partial(source.with_own_kernels().trace, substrate="cpu")


def has_compiler() -> bool:
    """Whether torch.compile finds what it needs on a CPU: a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or COMPILERS[0], *COMPILERS))


def _priced(source: Source, chip: Chip, capacity_bytes: int | None, history: bool,
            strategy: Strategy) -> tuple[Forecast, Trace]:  # fmt: skip
    trace, communication = data_parallel(source.trace(recorded_as(strategy), substrate="cpu"), strategy)
    # The loop copies a batch when it needs it.
    found = price(trace, communication, chip, count=1, capacity_bytes=capacity_bytes, strategy=strategy, prefetched=False)
    return (as_last_measured(found, trace, strategy, chip) if history else found), trace
