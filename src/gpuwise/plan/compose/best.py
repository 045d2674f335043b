"""The fastest strategies of a job on each of many clusters, of any chips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.memory.device import outside_bytes
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.compose.chip_prices import ChipPrices
from gpuwise.plan.compose.job_arrays import SHORTEST_PART, JobArrays, Variants, limits_of
from gpuwise.plan.compose.many_calls import Networks
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.compose.pruned import PrunedSearch
from gpuwise.plan.compose.row_time import RowTime
from gpuwise.plan.compose.space_rows import Space, block_parts
from gpuwise.plan.space.layouts import Layouts, ModelLimits, layouts


@dataclass(frozen=True)
class BestOnCluster:
    """The best strategies on one cluster.

    Attributes:
        points: the fastest that fit, the best first.
        least_bytes: memory that the strategy needs that needs least, where none fits; None where some fit, or where no layout
            makes the global batch.
        problem: why nothing is composed here, as of a link without figures; "" where nothing is in the way.
        considered: strategies that the search chose from.
    """

    points: tuple[ComposedPoint, ...]
    least_bytes: float | None
    problem: str = ""
    considered: int = 0


def best_on(
    blocks: JobBlocks,
    clusters: Sequence[Cluster],
    *,
    global_batch: int,
    recomputes: Sequence[str] = ("none", "selective", "full"),
    keep: int = 1,
    layouts_of: Callable[[int, ModelLimits], Layouts] = layouts,
    variants: Variants | None = None,
) -> list[BestOnCluster]:
    """The fastest strategies of a global batch on each cluster that fit, in the order of the clusters.

    Arguments:
        global_batch: samples of a step.
        recomputes: those to try, of which the job has traces.
        keep: strategies to return for a cluster.
        layouts_of: layouts to try on a number of devices; by default all. Tensor parallelism stays within a machine.
        variants: as for JobArrays.

    Ties are broken by memory, then by the order of layouts, variants and micro-batches. What is left out cannot be among the
    best: see gpuwise.plan.compose.pruned. Sequences are divided into parts of LEAST_PART tokens or more; where nothing fits on
    any cluster, into shorter ones.

    Raises UnsupportedError where the job's blocks cannot be composed, and the errors of tracing.
    """
    if not clusters:
        return []
    most_tensor = max(one.devices_per_machine for one in clusters)

    def with_parts(of: Sequence[Cluster], limits: ModelLimits) -> list[BestOnCluster]:
        spaces = {n: layouts_of(n, limits).under(blocks.techniques) for n in sorted({one.devices for one in of})}
        return _best_on(blocks, of, spaces, global_batch=global_batch, recomputes=recomputes, keep=keep, variants=variants)

    limits = limits_of(blocks, most_tensor)
    result = with_parts(clusters, limits)
    if not any(one.points for one in result):
        shorter = limits_of(blocks, most_tensor, least_part=SHORTEST_PART)
        crowded = [n for n, one in enumerate(result) if not one.problem and _may_hold(blocks, clusters[n])]
        if crowded and shorter != limits:
            again = with_parts([clusters[n] for n in crowded], shorter)
            for n, one in zip(crowded, again, strict=True):
                result[n] = one
    return result


def least_device_bytes(blocks: JobBlocks, cluster: Cluster) -> float:
    """A lower bound of the memory that a device of a cluster needs under any mesh: its part of parameters, gradients and
    optimizer state, all of which are there during the update, and what is outside the allocator."""
    holdings, update = blocks.holdings(tp=1, sharded=False)
    count = len(blocks.whole.header.blocks)
    weights = np.array([[1, 1, max(0, count - 2), min(1, count - 1), 1]])  # of SECTIONS
    parameter_bytes, gradient_bytes = (float(each[0]) for each in holdings.of_ranks(weights))
    elements = gradient_bytes / blocks.element_bytes(sharded=False)[0]
    state_bytes = update.cost((0.0, 0.0)).state_bytes.each * elements
    return (parameter_bytes + gradient_bytes + state_bytes) / cluster.devices + outside_bytes(cluster, blocks.parameters)


def _may_hold(blocks: JobBlocks, cluster: Cluster) -> bool:
    return cluster.capacity_bytes is None or least_device_bytes(blocks, cluster) <= cluster.capacity_bytes


def _best_on(
    blocks: JobBlocks,
    clusters: Sequence[Cluster],
    spaces: Mapping[int, Layouts],
    *,
    global_batch: int,
    recomputes: Sequence[str],
    keep: int,
    variants: Variants | None,
) -> list[BestOnCluster]:
    """As best_on, of given layouts of each number of devices."""
    needed = {part for one in spaces.values() for part in block_parts(one)}
    arrays = JobArrays(blocks, needed=sorted(needed), recomputes=recomputes, variants=variants)
    prices, problems = _prices(arrays, clusters)
    networks = Networks(clusters, blocks.parameters)
    problems = [one or other for one, other in zip(problems, networks.problems, strict=True)]
    result = [BestOnCluster((), None, problem) for problem in problems]
    for devices, of_devices in spaces.items():
        chosen = [n for n, one in enumerate(clusters) if one.devices == devices and not problems[n]]
        space = Space(arrays, of_devices, global_batch=global_batch)
        if not chosen or not len(space.works):
            continue
        time = RowTime(arrays, space, [clusters[n] for n in chosen], prices.of(chosen), networks, networks.number[chosen])
        search = PrunedSearch(arrays, space, [clusters[n] for n in chosen], time, keep=keep)
        for row, number in enumerate(chosen):
            points, least_bytes = search.points(row), search.least_bytes(row)
            result[number] = BestOnCluster(points, least_bytes, considered=search.considered(row))
    return result


def _prices(arrays: JobArrays, clusters: Sequence[Cluster]) -> tuple[ChipPrices, list[str]]:
    """The prices of the clusters' chips, and by cluster why its chip cannot run the job; "" where it can."""
    chips: dict[Chip, int | str] = {}
    batch_s, update_s = [], []
    for cluster in clusters:
        if cluster.chip not in chips:
            try:
                batch_s.append(arrays.batch_s(cluster.chip))
                update_s.append(arrays.update_s(cluster.chip))
            except UnsupportedError as error:
                chips[cluster.chip] = error.what
            else:
                chips[cluster.chip] = len(update_s) - 1
    of_cluster = [chips[cluster.chip] for cluster in clusters]
    problems = [one if isinstance(one, str) else "" for one in of_cluster]
    index = np.array([0 if isinstance(one, str) else one for one in of_cluster])
    if not update_s:
        return ChipPrices(index, np.zeros(0), np.zeros(0)), problems
    return ChipPrices(index, np.stack(batch_s, axis=3), np.stack(update_s, axis=1)), problems
