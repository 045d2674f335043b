"""What would make a job fit where it does not: other chips, more devices, or techniques together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.cost.rates import why_not
from gpuwise.errors import InputError, MissingDependencyError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside, most_inside
from gpuwise.plan.fit.techniques import Technique
from gpuwise.plan.fit.types import Combination
from gpuwise.plan.space import legal
from gpuwise.plan.space.micro_batch import surely_serves
from gpuwise.plan.traces import Traces
from gpuwise.strategy import Mesh, Strategy

_NEAREST = 3


def holds(traces: Traces, strategy: Strategy, cluster: Cluster) -> bool:
    """Whether one sample fits, decided by the allocator. False where the strategy cannot be traced."""
    try:
        return surely_serves(traces, strategy.but(micro_batch=1), cluster)
    except (UnsupportedError, MissingDependencyError, InputError):
        return False


def nearest_chips(traces: Traces, asked: Strategy, catalog: Catalog, cluster: Cluster) -> tuple[str, ...]:
    """The smallest chips that hold one sample as asked."""
    found: list[str] = []
    least = cluster.capacity_bytes or 0
    chips = [chip for chip in catalog.chips.values() if (chip.usable_memory_bytes or 0) > least]
    for chip in sorted(chips, key=lambda c: (c.usable_memory_bytes or 0, c.id)):
        if why_not(chip, mode=asked.mode) or not legal.precisions_for(chip, asked.precision):
            continue
        if holds(traces, asked, Cluster(chip, cluster.devices)):
            found.append(chip.id)
        if len(found) == _NEAREST:
            break
    return tuple(found)


def nearest_devices(traces: Traces, asked: Strategy, catalog: Catalog, cluster: Cluster) -> int | None:
    """The fewest devices of one machine, a power of two, that hold one sample each with everything sharded."""
    devices, most = 2, most_inside(cluster.chip, catalog=catalog)
    while asked.mode == "train" and devices <= most:
        link = link_inside(cluster.chip, devices, catalog=catalog)
        more = replace(cluster, devices_per_machine=devices, inside=link)
        if devices > cluster.devices and holds(traces, asked.but(mesh=Mesh(dp_shard=devices)), more):
            return devices
        devices *= 2
    return None


def nearest_combination(traces: Traces, asked: Strategy, best: Sequence[Technique], cluster: Cluster) -> Combination | None:
    """Techniques, taken in this order, until one sample fits; then those are left out again that it does not need."""
    chosen: list[Technique] = []
    for technique in best:
        if any(technique.kind == other.kind for other in chosen) or _with(asked, [*chosen, technique]) is None:
            continue
        chosen.append(technique)
        if _fits(traces, asked, chosen, cluster):
            break
    else:
        return None
    for technique in chosen[:-1]:
        fewer = [other for other in chosen if other is not technique]
        if _fits(traces, asked, fewer, cluster):
            chosen = fewer
    strategy = _with(asked, chosen)
    assert strategy is not None
    changes = any(technique.changes_training for technique in chosen)
    return Combination(tuple(technique.name for technique in chosen), strategy, changes)


def _fits(traces: Traces, asked: Strategy, chosen: Sequence[Technique], cluster: Cluster) -> bool:
    strategy = _with(asked, chosen)
    return strategy is not None and holds(traces, strategy, cluster)


def _with(asked: Strategy, chosen: Sequence[Technique]) -> Strategy | None:
    strategy: Strategy | None = asked.but(micro_batch=1)
    for technique in chosen:
        strategy = None if strategy is None else technique.of(strategy)
    return strategy
