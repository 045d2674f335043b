"""fit: the largest micro-batch on a device, and the smallest change that makes a step fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.devices import Device, device_of, is_this_cpu
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.shared_cpu import memory_notes
from gpuwise.api.source import StepSource
from gpuwise.api.sources import PresetSource, SavedSource, source_of
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes.step import of_a_step
from gpuwise.plan.fit.change import FitProblem, FittingChange, NoFittingChange
from gpuwise.plan.fit.change_search import fitting_change
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.step_settings import ClusterSettings, mesh_of, named_settings, sizes_of, strategy_of, usual_micro_batches
from gpuwise.strategy import Mesh, Strategy, check_layout_works, check_settings_work, check_techniques

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.plan.fit.types import FitResult

# Largest step, in operations of two micro-batches, that is traced a second time by default. A count instead of a time gives
# the same answer on every machine; benchmarks/record_speed.py shows how many operations are recorded a second.
_TRACED_AGAIN = 4_000


@plainly
def fit(job: str | Job, *, on: str, every_technique: bool = False, **settings: Unpack[ClusterSettings]) -> FitResult:
    """The largest micro-batch of a job on a device, its memory peak, and the memory techniques, best trade first.

    Arguments:
        job, on, settings: as for `forecast`. Techniques are compared at micro_batch; None takes the largest that fits.
        every_technique: whether to trace the job again for each technique that needs it (other precisions, recomputation,
            adapters, compile), which takes seconds each. By default only full recomputation of a small job is traced.
            Presets need no tracing.

    Raises the errors of `forecast`.
    """
    from gpuwise.plan.fit.fit import fit as find_fit

    requested = named_settings(settings, ClusterSettings)
    micro_batches = usual_micro_batches(requested)
    if micro_batches is not None:
        requested["accumulate"] = micro_batches
    strategy = strategy_of(requested)
    source = source_of(job, **sizes_of(requested))
    catalog = load_catalog()
    device = device_of(on, catalog, mesh=mesh_of(requested), network=requested.get("network"))
    several = mesh_of(requested) or Mesh(dp_replicate=device.devices, dp_shard=device.devices)
    check_settings_work(requested, several, adapter="lora")  # among the techniques that are compared
    check_layout_works(requested, source.has_images)
    check_techniques(strategy, source.step_facts(device.target))
    traces = source.traces(device.target)
    result = find_fit(
        StepPricer(traces, catalog=catalog),
        device.cluster,
        requested=strategy,
        precision=requested.get("precision"),
        micro_batch=requested.get("micro_batch"),
        recordable=None if every_technique else recordable_of(source, traces),
    )
    if not result.fits or (result.largest_micro_batch or 0) < (requested.get("micro_batch") or 0):
        result = replace(result, answer=fitting_change_of(source, device, result.rows[0].strategy))
    network = () if device.network is None else device.network.notes
    memory = result.rows[0].memory if is_this_cpu(device) and result.fits else None
    short = memory_notes(memory.device_bytes) if memory else ()
    return replace(result, assumption_notes=of_a_step([*device.spec.assumed, *network, *result.assumption_notes, *short]))


def recordable_of(source: StepSource, traces: StepTraces) -> Callable[[Strategy, Strategy], bool] | None:
    """The variants of a job that are tried by default: recorded ones, and full recomputation if tracing is quick."""
    if isinstance(source, SavedSource):
        return None

    def recorded(variant: Strategy) -> bool:
        return isinstance(source, PresetSource) and source.recorded(variant) is not None

    def worth_it(variant: Strategy, requested: Strategy) -> bool:
        if recorded(variant) or recorded(requested) or variant != requested.but(recompute="full"):
            return recorded(variant)
        return len(traces.family(requested).sequence) <= _TRACED_AGAIN

    return worth_it


def fitting_change_of(source: StepSource, device: Device, requested: Strategy) -> FittingChange | NoFittingChange | None:
    """The smallest change of a strategy that fits a device. None for several machines, and if the search fails."""
    if device.machines > 1:
        return None
    try:
        return fitting_change(
            fit_problem_of(source, device.cluster, requested, target=device.target, host_bytes=host_bytes(device))
        )
    except GpuwiseError as error:
        warnings.warn(f"what would fit is not known: {error.what}", stacklevel=2)
        return None


def fit_problem_of(
    source: StepSource, cluster: Cluster, requested: Strategy, *, target: str, host_bytes: int | None
) -> FitProblem:
    """The FitProblem for a source."""
    return FitProblem(
        StepPricer(source.traces(target)),
        requested,
        cluster,
        host_bytes,
        source.argument,
        cluster.name,
    )


def host_bytes(device: Device) -> int | None:
    """Host memory in bytes: this machine's, else the largest of any offer with these devices."""
    if device.spec.machine is not None:
        return device.spec.machine.host_memory_bytes
    return offered_host_bytes(device.chip.id, device.count, device.catalog)


def offered_host_bytes(chip_id: str, count: int, catalog: Catalog) -> int | None:
    """The largest host memory of an offer with `count` of a chip; None if no offer gives it."""
    sizes = [o.host_memory_bytes for o in catalog.offers if o.chip_id == chip_id and o.devices == count and o.host_memory_bytes]
    return max(sizes, default=None)
