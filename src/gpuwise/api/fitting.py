"""fit: the largest micro-batch on a device; and the smallest change that fits, where a step does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.devices import Device, device_of
from gpuwise.api.source import StepSource
from gpuwise.api.sources import PresetSource, SavedSource, source_of
from gpuwise.errors import GpuwiseError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes.step import of_a_step
from gpuwise.plan.fit.change import FitProblem, FittingChange, NoFittingChange
from gpuwise.plan.fit.change_search import fitting_change
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.step_settings import DeviceSettings, mesh_of, named_settings, sizes_of, strategy_of
from gpuwise.strategy import Strategy, check_techniques

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.plan.fit.types import FitResult

# Operations of a step (two micro-batches) up to which a job is traced a second time unasked. Counted, not timed, so that
# every machine gives the same answer: see benchmarks/record_speed.py for how many a second are recorded.
_TRACED_AGAIN = 4_000


def fit(job: str | Job, *, on: str, every_technique: bool = False, **settings: Unpack[DeviceSettings]) -> FitResult:
    """The largest micro-batch of a job on a device, where its memory peaks, and what each memory technique would free and
    cost, in order of best trade.

    Arguments:
        job, on, settings: as for `forecast`. micro_batch is the one at which techniques are compared, None for the largest
            that fits.
        every_technique: whether the job is traced anew for each technique that needs it (other precisions, recomputation,
            adapters, compile), which takes seconds each. By default only full recomputation of a small job is. Presets need
            no tracing.

    Raises what `forecast` raises.
    """
    from gpuwise.plan.fit.fit import fit as find_fit

    requested = named_settings(settings, DeviceSettings)
    strategy = strategy_of(requested)
    source = source_of(job, **sizes_of(requested))
    catalog = load_catalog()
    device = device_of(on, catalog, mesh=mesh_of(requested))
    if device.machines > 1:
        raise UnsupportedError("fit looks at one machine.", [f"--on {device.chip.id}:{device.count}"])
    check_techniques(strategy, source.step_facts(device.target))
    traces = source.traces(device.target)
    result = find_fit(
        StepPricer(traces, catalog=catalog),
        device.cluster,
        requested=strategy,
        precision=requested.get("precision"),
        micro_batch=requested.get("micro_batch"),
        recordable=None if every_technique else _recordable(source, traces),
    )
    if not result.fits or (result.largest_micro_batch or 0) < (requested.get("micro_batch") or 0):
        result = replace(result, answer=fitting_change_of(source, device, result.rows[0].strategy))
    return replace(result, assumption_notes=of_a_step([*device.spec.assumed, *result.assumption_notes]))


def _recordable(source: StepSource, traces: StepTraces) -> Callable[[Strategy, Strategy], bool] | None:
    """Which variants of a job are looked at unasked: recorded ones, and full recomputation where tracing takes a moment."""
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
    """The smallest change of a strategy that fits a device. None for several machines, and where the search fails."""
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
        at_other_lengths(source, target),
        source.argument,
        cluster.name,
    )


def at_other_lengths(source: StepSource, target: str) -> Callable[[int], StepTraces] | None:
    """The job's traces at another sequence length. None for a saved trace and a Job object, which have one."""
    if isinstance(source, SavedSource) or not source.argument:
        return None

    def with_seq_len(length: int) -> StepTraces:
        return source_of(source.argument, **{**source.sizes, "seq_len": length}).traces(target)

    return with_seq_len


def host_bytes(device: Device) -> int | None:
    """Memory of the host: this machine's, else the most that a machine with these devices is offered with."""
    if device.spec.machine is not None:
        return device.spec.machine.host_memory_bytes
    return offered_host_bytes(device.chip.id, device.count, device.catalog)


def offered_host_bytes(chip_id: str, count: int, catalog: Catalog) -> int | None:
    """The most host memory of an offer with so many of a chip, None where no offer says."""
    sizes = [o.host_memory_bytes for o in catalog.offers if o.chip_id == chip_id and o.devices == count and o.host_memory_bytes]
    return max(sizes, default=None)
