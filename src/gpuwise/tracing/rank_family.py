"""rank_family: the step of a rank as a function of the degrees of its mesh, from recordings on few ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.degrees import RankFamily, first_rank, join_degrees
from gpuwise.trace.parallel.divided import MeshAxis
from gpuwise.tracing.few_blocks import is_plain
from gpuwise.tracing.record import record_step

AXES = ("dp_replicate", "dp_shard", "cp", "tp")
# Their states and scales have another form from some number of elements on.
_OF_SIZES = ("adamw-8bit", "adamw-4bit", "adafactor", "muon")


def rank_family(job: Job, strategy: Strategy, *, target: str = "accelerator", position: int = 0) -> RankFamily | None:
    """The step of a rank as a function of the degrees of those of AXES that strategy.mesh has.

    Each axis is recorded with 2 and 4 ranks: two recordings for one axis, four for two. It pays where several meshes are to be
    priced. None where the recordings do not show other degrees; each mesh is then recorded for itself.

    Arguments:
        target: as for `record`.
        position: along the pipeline, of the first rank there. Default 0.

    Raises JobError as `record` does.
    """
    axes = tuple(MeshAxis(axis, start=2, step=2, degree=1) for axis in AXES if getattr(strategy.mesh, axis) > 1)
    optimizer = strategy.optimizer or job.optimizer
    if not axes or not is_plain(job, strategy) or strategy.precision == "fp8" or optimizer in _OF_SIZES:
        return None
    steps = {}
    for point in product(*(axis.points for axis in axes)):
        mesh = replace(strategy.mesh, **{axis.name: degree for axis, degree in zip(axes, point, strict=True)})
        steps[point] = record_step(job, strategy.but(mesh=mesh), target=target, rank=first_rank(mesh, position))
    return join_degrees(steps, axes)
