"""What would fit where something does not: gpuwise.plan.fit.change_search for a job's source and a device."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from gpuwise.api.devices import Device
from gpuwise.api.source import StepSource
from gpuwise.api.sources import SavedSource, source_of
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.fit.change import FitProblem, FittingChange, NoFittingChange
from gpuwise.plan.fit.change_search import fitting_change
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Strategy


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
    found = [o.host_memory_bytes for o in catalog.offers if o.chip_id == chip_id and o.devices == count and o.host_memory_bytes]
    return max(found, default=None)
