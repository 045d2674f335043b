"""fit: the largest micro-batch on a device, its memory peak, and the savings and costs of memory techniques."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwise.cost.rates import check_can_run
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes.step import memory_not_known, program_changes_with_batch
from gpuwise.plan.fit import nearest
from gpuwise.plan.fit.table import TechniqueTable
from gpuwise.plan.fit.types import FitResult
from gpuwise.plan.pricing.data_parallel import with_data_parallel
from gpuwise.plan.pricing.largest import MOST_MICRO_BATCH, largest_micro_batch, recorded_batches
from gpuwise.plan.pricing.precision import chosen_precision
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.update.compose import with_plain_update


def fit(
    pricer: StepPricer,
    cluster: Cluster,
    *,
    requested: Strategy,
    precision: str | None = None,
    micro_batch: int | None = None,
    recordable: Callable[[Strategy, Strategy], bool] | None = None,
) -> FitResult:
    """The largest micro-batch on a device, and the effect of each memory technique.

    Arguments:
        pricer: the job's pricer.
        cluster: the devices. If the requested mesh has another number of devices, each holds a full copy, or a shard where
            only that fits.
        requested: the strategy, without micro-batch and precision.
        precision: precision of the step; None takes the chip's best.
        micro_batch: micro-batch at which techniques are compared; None takes the largest that fits.
        recordable: (variant, plain variant) -> whether the variant may be recorded; None allows all.

    Raises UnsupportedError if the chip cannot run the job in that precision, and the errors of tracing.
    """
    chip, capacity = cluster.chip, cluster.capacity_bytes
    check_can_run(chip, mode=requested.mode)
    chosen, assumptions = chosen_precision(pricer.traces, requested, chip, precision)
    requested = requested.but(precision=chosen)
    if cluster.devices > 1:
        requested, meshes = with_data_parallel(pricer, requested, cluster)
        assumptions += meshes
    if recordable is not None:
        pricer = _limited(pricer, requested, recordable)
    largest = largest_micro_batch(pricer, requested, cluster)
    each_recorded = not pricer.traces.is_of_any_batch(requested)
    tried = recorded_batches(pricer, requested, most=MOST_MICRO_BATCH) if each_recorded else [MOST_MICRO_BATCH]
    if each_recorded:
        assumptions.append(program_changes_with_batch(tried=", ".join(map(str, tried))))
    if capacity is None:
        assumptions.append(memory_not_known())
    compared = micro_batch or (largest if capacity is not None else None) or 1
    table = TechniqueTable(pricer, cluster, requested.but(micro_batch=compared), largest)
    rows = [table.first(), *sorted(table.rows(), key=lambda row: row.trade)]
    at_largest = None
    if largest is not None:
        priced = largest == compared or capacity is None
        at_largest = table.base if priced else pricer.forecast(requested.but(micro_batch=largest), cluster)
    result = FitResult(
        table.header.job,
        chip.id,
        cluster.devices,
        capacity,
        compared,
        tuple(rows),
        at_largest,
        table.peak,
        largest_tried=max(tried, default=1),
        assumption_notes=(*table.header.assumption_notes, *assumptions),
    )
    return result if largest is not None else _with_ways_out(result, table)


def _limited(pricer: StepPricer, requested: Strategy, recordable: Callable[[Strategy, Strategy], bool]) -> StepPricer:
    """A pricer for the requested variant, and for the other variants that may be recorded."""
    variant = recorded_as(requested).variant
    plain = with_plain_update(variant)
    traces = pricer.traces.only(lambda other: other in (variant, plain) or recordable(other, plain))
    return StepPricer(traces, catalog=pricer.catalog, data=pricer.data)


def _with_ways_out(result: FitResult, table: TechniqueTable) -> FitResult:
    """The result with changes that make the job fit."""
    pricer, requested, cluster, rows = table.pricer, table.requested, table.cluster, result.rows[1:]
    alone = ("allocator", "combination", "accumulation")
    useful = [row for row in rows if row.frees and row.devices == cluster.devices and row.kind not in alone]
    by_name = {technique.name: technique for technique in table.techniques}
    # Best trade first; if the best of each kind is not enough, the techniques that free most.
    strongest = sorted(useful, key=lambda row: (row.changes_training, -(row.freed_bytes or 0)))
    orders = [[by_name[row.technique] for row in order] for order in (useful, strongest)]
    return replace(
        result,
        nearest_chips=nearest.nearest_chips(pricer, requested, cluster),
        nearest_techniques=tuple(row.technique for row in rows if row.largest_micro_batch),
        nearest_combination=next(
            filter(None, (nearest.nearest_combination(pricer, requested, order, cluster) for order in orders)), None
        ),
        nearest_devices=nearest.nearest_devices(pricer, requested, cluster),
    )
