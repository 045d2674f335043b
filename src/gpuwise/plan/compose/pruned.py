"""The fastest strategies of a Space on many clusters, without composing those that cannot be among them.

Works are taken in the order of a lower bound of their time (RowTime.least_s): in all layouts at once, the most promising first.
A work whose bound is longer than the best strategies that fit is left out with all its layouts. So is what needs more than the
device has at one moment of the step already (RowMemory.least_bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from gpuwise.cost.memory.device import SEGMENT_BYTES, blas_workspace_bytes, outside_bytes
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.job_arrays import JobArrays
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.compose.row_memory import RowMemory
from gpuwise.plan.compose.row_time import RowTime
from gpuwise.plan.compose.space_rows import Space, StrategyRows, expanded
from gpuwise.plan.pricing.step import HEADROOM

_FIRST_WORKS = 4  # taken of each cluster at once; four times as many in each further round


class PrunedSearch:
    """A search over the strategies of some clusters of equally many devices.

    Arguments:
        time: of the strategies on these clusters.
        keep: strategies wanted of each cluster.
    """

    def __init__(self, arrays: JobArrays, space: Space, clusters: Sequence[Cluster], time: RowTime, *, keep: int):
        self._arrays, self._space, self._clusters, self._keep = arrays, space, clusters, keep
        self._time, self._memory = time, RowMemory(arrays, space)
        figures, some = arrays.blocks.parameters, arrays.blocks.whole
        self._workspace = np.array([2.0 * blas_workspace_bytes(some, one.chip, figures) for one in clusters])
        self._outside = np.array([float(outside_bytes(one, figures)) for one in clusters])
        self._limit = np.array([np.inf if one.capacity_bytes is None else HEADROOM * one.capacity_bytes for one in clusters])
        per_machine = np.array([one.devices_per_machine for one in clusters])
        self._reaches = space.works.tp <= per_machine[:, None]
        self._work, self._layout = expanded(space.works.first, space.works.layouts)
        self._start = np.cumsum(space.works.layouts) - space.works.layouts
        self._least_live = self._memory.least_bytes(self._work, self._layout)[0]
        self._live = np.full((2, len(self._work)), np.nan)  # of each strategy, once it is asked for
        self._least_of_layouts: dict[int, tuple[float, float] | None] = {}
        self._best = self._searched()

    @cached_property
    def _by_least(self) -> np.ndarray:
        """Strategies in the order of the least that they need."""
        return np.argsort(self._least_live, kind="stable")

    def considered(self, cluster: int) -> int:
        """Number of strategies on a cluster."""
        return int(self._space.works.layouts[self._reaches[cluster]].sum())

    def points(self, cluster: int) -> tuple[ComposedPoint, ...]:
        """The fastest strategies of a cluster, the best first."""
        rows, seconds, needed = self._best
        chosen = np.flatnonzero(rows.cluster == cluster)
        return tuple(
            self._point(int(rows.work[row]), int(rows.layout[row]), seconds[row], needed[row]) for row in chosen.tolist()
        )

    def least_bytes(self, cluster: int) -> float | None:
        """Memory that the strategy of a cluster needs that needs least; None where some fit, or where there is none."""
        if (self._best[0].cluster == cluster).any():
            return None
        key = self._clusters[cluster].devices_per_machine
        if key not in self._least_of_layouts:
            self._least_of_layouts[key] = self._least(self._reaches[cluster])
        live = self._least_of_layouts[key]
        if live is None:
            return None
        return float(self._device_bytes(np.array([[live[0]], [live[1]]]), np.array([cluster]))[0])

    def _least(self, reaches: np.ndarray) -> tuple[float, float] | None:
        """Live and moving bytes of the strategy that needs least."""
        more = self._arrays.blocks.parameters.reserved_per_moving_byte - 1
        rows = self._by_least[reaches[self._work[self._by_least]]]
        best: tuple[float, float] | None = None
        for start in range(0, len(rows), 256):
            part = rows[start : start + 256]
            if best is not None and self._least_live[part[0]] > best[0] + more * best[1]:
                break
            live = self._live_bytes(part)
            reserved = live[0] + more * live[1]
            lowest = int(reserved.argmin())
            if best is None or reserved[lowest] < best[0] + more * best[1]:
                best = float(live[0, lowest]), float(live[1, lowest])
        return best

    def _live_bytes(self, index: np.ndarray) -> np.ndarray:
        """As RowMemory.live_bytes has them, of strategies by their index. Shape (2, rows)."""
        missing = np.unique(index[np.isnan(self._live[0, index])])
        if len(missing):
            self._live[:, missing] = self._memory.live_bytes(self._work[missing], self._layout[missing])
        result: np.ndarray = self._live[:, index]
        return result

    def _device_bytes(self, live: np.ndarray, cluster: np.ndarray) -> np.ndarray:
        """Bytes as gpuwise.cost.memory counts them. live: as RowMemory.live_bytes has them."""
        workspace, more = self._workspace[cluster], self._arrays.blocks.parameters.reserved_per_moving_byte - 1
        reserved = live[0] + workspace + (live[1] + workspace) * more
        result: np.ndarray = np.ceil(reserved / SEGMENT_BYTES) * SEGMENT_BYTES + self._outside[cluster]
        return result

    def _searched(self) -> tuple[StrategyRows, np.ndarray, np.ndarray]:
        """The best rows, by cluster and the best first, with their seconds and bytes."""
        most_live = (self._limit - self._outside)[:, None]
        least_live = np.minimum.reduceat(self._least_live, self._start) + self._workspace[:, None]
        cluster, work = np.nonzero(self._reaches & (least_live <= most_live))
        bound = np.full((len(self._clusters), len(self._space.works)), np.inf)
        bound[cluster, work] = self._time.least_s(cluster, work)
        order = np.argsort(bound, axis=1, kind="stable")
        in_order = np.take_along_axis(bound, order, 1)
        limit_s = np.full(len(self._clusters), np.inf)
        pool = _none()
        start, count = 0, _FIRST_WORKS
        while start < bound.shape[1]:
            there = np.isfinite(in_order[:, start : start + count]) & (in_order[:, start : start + count] <= limit_s[:, None])
            if not there.any():
                break
            cluster, column = np.nonzero(there)
            pool = self._with(pool, self._rows(cluster, order[cluster, start + column]), limit_s)
            start, count = start + count, 4 * count
        return pool

    def _rows(self, cluster: np.ndarray, work: np.ndarray) -> StrategyRows:
        """Works in all their layouts, but for those that need too much memory."""
        run, index = expanded(self._start[work], self._space.works.layouts[work])
        fits = self._least_live[index] + (self._workspace + self._outside)[cluster[run]] <= self._limit[cluster[run]]
        return StrategyRows(cluster[run[fits]], work[run[fits]], self._layout[index[fits]])

    def _with(
        self, pool: tuple[StrategyRows, np.ndarray, np.ndarray], rows: StrategyRows, limit_s: np.ndarray
    ) -> tuple[StrategyRows, np.ndarray, np.ndarray]:
        """The best of a pool and of further rows. limit_s: seconds of the last of the best of each cluster; it is set anew."""
        seconds = self._time.step_s(rows)
        quick = np.flatnonzero(seconds <= limit_s[rows.cluster])
        rows, seconds = rows.chosen(quick), seconds[quick]
        index = self._start[rows.work] + rows.layout - self._space.works.first[rows.work]
        needed = self._device_bytes(self._live_bytes(index), rows.cluster)
        fits = np.flatnonzero(needed <= self._limit[rows.cluster])
        return self._first(_joined(pool, (rows.chosen(fits), seconds[fits], needed[fits])), limit_s)

    def _first(
        self, pool: tuple[StrategyRows, np.ndarray, np.ndarray], limit_s: np.ndarray
    ) -> tuple[StrategyRows, np.ndarray, np.ndarray]:
        """The best of each cluster in their order."""
        rows, seconds, needed = pool
        works = self._space.works
        of_layout = self._space.order[rows.layout]
        order = np.lexsort((works.column[rows.work], works.entry[rows.work], of_layout, needed, seconds, rows.cluster))
        cluster = rows.cluster[order]
        number = np.arange(len(order)) - np.searchsorted(cluster, cluster)
        chosen = order[number < self._keep]
        last = order[number == self._keep - 1]
        limit_s[rows.cluster[last]] = seconds[last]
        return rows.chosen(chosen), seconds[chosen], needed[chosen]

    def _point(self, work: int, layout: int, seconds: float, needed: float) -> ComposedPoint:
        works, layouts, blocks = self._space.works, self._space.layouts, self._arrays.blocks
        variant = self._arrays.entries[works.entry[work]].variant
        parallelism = replace(
            layouts.parallelism(layout), sequence_parallel=variant.sequence_parallel, loss_parallel=variant.loss_parallel
        )
        strategy = blocks.techniques.but(
            mesh=layouts.mesh(layout),
            parallelism=parallelism,
            recompute=variant.recompute,
            micro_batch=int(blocks.micro_batches[works.column[work]]),
            accumulation=int(works.accumulation[work]),
        )
        return ComposedPoint(strategy, float(seconds), float(needed))


def _none() -> tuple[StrategyRows, np.ndarray, np.ndarray]:
    nothing = np.zeros(0, dtype=np.int64)
    return StrategyRows(nothing, nothing, nothing), np.zeros(0), np.zeros(0)


def _joined(
    one: tuple[StrategyRows, np.ndarray, np.ndarray], other: tuple[StrategyRows, np.ndarray, np.ndarray]
) -> tuple[StrategyRows, np.ndarray, np.ndarray]:
    rows = StrategyRows(
        *(np.concatenate([getattr(part[0], name) for part in (one, other)]) for name in ("cluster", "work", "layout"))
    )
    return rows, np.concatenate([one[1], other[1]]), np.concatenate([one[2], other[2]])
