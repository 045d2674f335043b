"""The fastest strategies of a job on a cluster, of all layouts, variants and micro-batches: memory first, time of what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.job_arrays import limits_of, variants_of
from gpuwise.plan.compose.memory import device_bytes
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.compose.ranks import PipelineRanks, pipeline_ranks
from gpuwise.plan.compose.steps import MeshSteps
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.pricing.step import HEADROOM
from gpuwise.plan.space.layouts import Layouts, accumulations, fills_pipeline, layouts
from gpuwise.trace.parallel.variant import is_sharded


@dataclass(frozen=True)
class ComposedSearch:
    """The result of a search.

    Attributes:
        points: legal strategies that were looked at.
        fitting: how many of them fit.
        best: the fastest that fit, the best first.
        least_bytes: memory of the one that needs least, of some without activations; None where nothing is legal.
    """

    points: int
    fitting: int
    best: tuple[ComposedPoint, ...]
    least_bytes: float | None


def search(
    table: BlockTable,
    cluster: Cluster,
    *,
    global_batch: int,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    keep: int = 10,
    chosen: Layouts | None = None,
) -> ComposedSearch:
    """The strategies of a table's job that make a global batch on a cluster, the fastest first.

    Arguments:
        global_batch: samples of a step.
        recomputes: those to try, of which the job has traces.
        keep: how many of the fastest to return.
        chosen: layouts to try; None tries all whose tensor parallelism stays within a machine.

    Ties are broken by memory, then by the order of layouts, variants and micro-batches: the same search gives the same result.
    """
    limits = limits_of(table.job, cluster.devices_per_machine)
    space = (layouts(cluster.devices, limits) if chosen is None else chosen).under(table.job.techniques)
    capacity = np.inf if cluster.capacity_bytes is None else HEADROOM * cluster.capacity_bytes
    points = fitting = 0
    least_bytes: float | None = None
    best: list[tuple[float, float, int, ComposedPoint]] = []
    order = count()
    pipelines: dict[tuple[int, int], PipelineRanks] = {}
    for row in range(len(space)):
        mesh, parallelism = space.mesh(row), space.parallelism(row)
        counts = accumulations(global_batch, data_parallel=mesh.data_parallel, micro_batches=table.micro_batches.tolist())
        legal = fills_pipeline(counts, pp=mesh.pp, stages_per_rank=parallelism.stages_per_rank)
        if not legal.any():
            continue
        key = mesh.pp, parallelism.stages_per_rank
        if key not in pipelines:
            pipelines[key] = pipeline_ranks(
                table.whole, pp=mesh.pp, schedule=parallelism.pipeline_schedule, stages_per_rank=parallelism.stages_per_rank
            )
        strategy = table.techniques.but(mesh=mesh, parallelism=parallelism)
        variants = variants_of(recomputes, tp=mesh.tp, cp=mesh.cp, ep=mesh.ep, seq_len=limits.seq_len)
        steps = MeshSteps(table, cluster, strategy, variants, pipelines[key], np.maximum(1, counts))
        needed = device_bytes(steps, limit_bytes=capacity)
        fits = legal & (needed <= capacity)
        points += len(variants) * int(legal.sum())
        fitting += int(fits.sum())
        fewest = float(needed[:, legal].min())
        least_bytes = fewest if least_bytes is None else min(least_bytes, fewest)
        if not fits.any():
            continue
        seconds = np.where(fits, steps.step_s(), np.inf)
        for cell in _lowest(seconds.ravel(), keep):
            variant, column = divmod(cell, seconds.shape[1])
            point = _point(steps, variant, column, seconds[variant, column], needed[variant, column])
            best.append((point.step_s, point.device_bytes, next(order), point))
        best = sorted(best)[:keep] if len(best) > 4 * keep else best
    ranked = tuple(point for *_, point in sorted(best, key=lambda entry: entry[:2])[:keep])
    return ComposedSearch(points, fitting, ranked, least_bytes)


def _lowest(seconds: np.ndarray, keep: int) -> list[int]:
    """The indices of the lowest finite numbers, ascending by number and index."""
    chosen = np.arange(len(seconds)) if len(seconds) <= keep else np.argpartition(seconds, keep - 1)[:keep]
    chosen = chosen[np.isfinite(seconds[chosen])]
    order = np.lexsort((chosen, seconds[chosen]))
    return [int(index) for index in chosen[order]]


def _point(steps: MeshSteps, variant: int, column: int, seconds: float, needed: float) -> ComposedPoint:
    settings = steps.variants[variant]
    parallelism = replace(
        steps.strategy.parallelism, sequence_parallel=settings.sequence_parallel, loss_parallel=settings.loss_parallel
    )
    strategy = steps.strategy.but(
        recompute=settings.recompute,
        micro_batch=int(steps.table.micro_batches[column]),
        accumulation=int(steps.accumulation[column]),
        parallelism=parallelism,
    )
    assert is_sharded(strategy) == steps.sharded
    return ComposedPoint(strategy, float(seconds), float(needed))
