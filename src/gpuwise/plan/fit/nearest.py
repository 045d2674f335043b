"""Ways to make a job fit: other chips, more devices, or combined techniques."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.cost.rates import why_not
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside, most_inside
from gpuwise.plan.fit.techniques import Technique
from gpuwise.plan.fit.types import Combination
from gpuwise.plan.pricing.largest import one_sample_fits
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.space import legal
from gpuwise.strategy import Strategy, check_techniques

_NEAREST = 3
_MOST_DEVICES = 2**14  # of the largest published runs (16,384 H100 of Llama 3)


def nearest_chips(pricer: StepPricer, requested: Strategy, cluster: Cluster) -> tuple[str, ...]:
    """The smallest chips on which one sample fits with the requested strategy."""
    names: list[str] = []
    least = cluster.capacity_bytes or 0
    chips = [chip for chip in pricer.catalog.chips.values() if (chip.usable_memory_bytes or 0) > least]
    for chip in sorted(chips, key=lambda c: (c.usable_memory_bytes or 0, c.id)):
        if why_not(chip, mode=requested.mode) or not legal.precisions_for(chip, requested.precision):
            continue
        if one_sample_fits(pricer, requested, Cluster(chip, cluster.devices)):
            names.append(chip.id)
        if len(names) == _NEAREST:
            break
    return tuple(names)


def nearest_devices(pricer: StepPricer, requested: Strategy, cluster: Cluster) -> int | None:
    """The smallest power of two of devices on which one sample each fits, with everything sharded that the mesh leaves whole.
    More than one machine holds are several."""
    mesh, most = requested.mesh, most_inside(cluster.chip, catalog=pricer.catalog)
    model = mesh.tp * mesh.pp * mesh.cp
    devices = 2
    while requested.mode == "train" and devices <= _MOST_DEVICES:
        shards, rest = divmod(devices, model)
        inside = min(devices, most)
        if devices > cluster.devices and not rest and devices % inside == 0 and shards % mesh.ep == 0:
            link = link_inside(cluster.chip, inside, catalog=pricer.catalog)
            more = replace(cluster, devices_per_machine=inside, machines=devices // inside, inside=link)
            if one_sample_fits(pricer, requested.but(mesh=replace(mesh, dp_replicate=1, dp_shard=shards)), more):
                return devices
        devices *= 2
    return None


def nearest_combination(
    pricer: StepPricer, requested: Strategy, best: Sequence[Technique], cluster: Cluster
) -> Combination | None:
    """Adds techniques in this order until one sample fits, then drops those that are not needed."""
    chosen: list[Technique] = []
    for technique in best:
        if any(technique.kind == other.kind for other in chosen) or _excluded(_with(requested, [*chosen, technique])):
            continue
        chosen.append(technique)
        if _fits(pricer, requested, chosen, cluster):
            break
    else:
        return None
    for technique in chosen[:-1]:
        fewer = [other for other in chosen if other is not technique]
        if _fits(pricer, requested, fewer, cluster):
            chosen = fewer
    strategy = _with(requested, chosen)
    changes = any(technique.changes_training for technique in chosen)
    return Combination(tuple(technique.name for technique in chosen), strategy, changes)


def _excluded(strategy: Strategy) -> bool:
    """Whether two techniques of the strategy exclude each other."""
    try:
        check_techniques(strategy)
    except GpuwiseError as error:
        return isinstance(error, InputError)
    return False


def _fits(pricer: StepPricer, requested: Strategy, chosen: Sequence[Technique], cluster: Cluster) -> bool:
    strategy = _with(requested, chosen)
    return one_sample_fits(pricer, strategy, cluster)


def _with(requested: Strategy, chosen: Sequence[Technique]) -> Strategy:
    strategy = requested.but(micro_batch=1)
    for technique in chosen:
        strategy = technique.of(strategy)
    return strategy
