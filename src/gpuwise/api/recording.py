"""record: writes a job's step to a file, which serves as a JOB without the job's code and without PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.plain_arguments import plainly
from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of
from gpuwise.errors import InputError
from gpuwise.step_settings import DeviceSettings, named_settings, sizes_of, strategy_of, usual_micro_batches
from gpuwise.strategy import Strategy, check_techniques
from gpuwise.trace import Trace, TraceFamily, family_of_one, save

if TYPE_CHECKING:
    from gpuwise.job import Job


@plainly
def record(
    job: str | Job,
    path: str | os.PathLike[str],
    *,
    rank: int | None = None,
    **settings: Unpack[DeviceSettings],
) -> TraceFamily:
    """Writes the job's step to a file that covers any micro-batch; with a mesh, the step of one of its ranks.

    It covers one precision (fp32 by default), recompute mode, optimizer, mode, layout and set of techniques. The settings are
    those of `forecast` (gpuwise.step_settings).

    Arguments:
        path: path that ends in .npz. Every other verb takes the file as a JOB; that of a rank, `forecast` with the same mesh.
        rank: which rank of the mesh is recorded, at one micro-batch and accumulation (1 by default); None (default) is 0.

    Raises InputError for another suffix, for a rank that the mesh does not have, and where only a rank has a micro-batch;
    and the errors of `forecast`.
    """
    target = Path(path).absolute()  # the job may change the working folder
    if target.suffix != ".npz":
        raise InputError(f"a recording is a .npz file, got {str(path)!r}.", [f"-o {Path(path).with_suffix('.npz')}"])
    requested = named_settings(settings, DeviceSettings)
    strategy, source = strategy_of(requested), source_of(job, **sizes_of(requested))
    if strategy.mesh.devices > 1:
        family = family_of_one(_rank_step(source, strategy, requested, 0 if rank is None else rank))
    else:
        _refuse_settings_of_ranks(requested, rank)
        family = source(strategy)
    save(family, target)
    return family


def _rank_step(source: StepSource, strategy: Strategy, requested: DeviceSettings, rank: int) -> Trace:
    if not 0 <= rank < strategy.mesh.devices:
        last = strategy.mesh.devices - 1
        raise InputError(f"the mesh {strategy.mesh} has ranks 0 to {last}, not {rank}.", [f"--rank {last}"])
    if (micro_batches := usual_micro_batches(requested)) is not None:
        strategy = strategy.but(accumulation=micro_batches)
    check_techniques(strategy, source.step_facts())
    return source.rank_step(strategy, "accelerator", rank)


def _refuse_settings_of_ranks(requested: DeviceSettings, rank: int | None) -> None:
    """Raises InputError where a setting is meant for a rank of several."""
    named = [f"--{name.replace('_', '-')}" for name in ("micro_batch", "accumulate") if requested.get(name) is not None]
    if rank is not None:
        named.append("--rank")
    if named:
        raise InputError(
            f"a recording of one device has no {named[0]}: it covers any micro-batch.", [f"leave out {named[0]}", "--mesh AXES"]
        )
