"""ComposedStrategies: the best mesh of each cluster, from a model's blocks; and the exact forecasts of what they give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuwise.cost.interval import step_interval
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import rejections
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.compose.best import BestOnCluster, JobBlocks, best_on
from gpuwise.plan.compose.search import ComposedPoint
from gpuwise.plan.compose.verify import Finals, verified
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import NoStrategy

# Of a micro-batch of more samples no model that needs several machines gains.
_MICRO_BATCHES = (1, 2, 4, 8, 16)
# Of a cluster that is shown the fastest are forecast exactly until so many fit.
_KEPT, _FINALISTS = 12, 2


class ComposedStrategies:
    """Composes the strategies of a job whose model has repeated blocks.

    Arguments:
        pricer: prices the job's steps.
        request: precision, recompute, micro-batch and techniques that are pinned.
        global_batch: samples of an optimizer step.
    """

    def __init__(self, pricer: StepPricer, request: Request, *, global_batch: int):
        self._pricer, self._request, self._global_batch = pricer, request, global_batch
        self._blocks: dict[str, JobBlocks] = {}
        self._points: dict[Key, tuple[ComposedPoint, ...]] = {}

    def best(self, by_key: Mapping[Key, Candidate]) -> dict[Key, Estimate | NoStrategy]:
        """The best strategy of each cluster, or the reason why there is none. Clusters that nothing is composed for are left
        out: their chip has no trace of blocks, or the user pins what is not composed."""
        groups: dict[tuple[str, ...], list[Key]] = defaultdict(list)
        for key, item in by_key.items():
            groups[tuple(legal.precisions_for(item.chip, self._request.precision))].append(key)
        best: dict[Key, Estimate | NoStrategy] = {}
        for precisions, keys in groups.items():
            clusters = [by_key[key].cluster for key in keys]
            for precision in precisions:
                try:
                    composed = self._best_on(precision, clusters)
                except NOT_TRACED:
                    continue
                best |= {key: self._estimate(key, by_key[key], one) for key, one in zip(keys, composed, strict=True)}
                break
        return best

    def finals(self, key: Key, cluster: Cluster) -> Finals:
        """The exact forecasts of the fastest strategies of a cluster."""
        return verified(self._points[key], self._pricer, cluster, most=_FINALISTS)

    def _best_on(self, precision: str, clusters: Sequence[Cluster]) -> list[BestOnCluster]:
        request = self._request
        recomputes = ("none", "full") if request.recompute is None else (request.recompute,)
        if precision not in self._blocks:
            usual = [size for size in _MICRO_BATCHES if size <= self._global_batch]
            sizes = usual if request.micro_batch is None else [request.micro_batch]
            techniques = request.techniques.but(precision=precision)
            self._blocks[precision] = JobBlocks(self._pricer.traces, techniques, micro_batches=sizes)
        return best_on(self._blocks[precision], clusters, global_batch=self._global_batch, recomputes=recomputes, keep=_KEPT)

    def _estimate(self, key: Key, item: Candidate, composed: BestOnCluster) -> Estimate | NoStrategy:
        cluster = item.cluster
        if composed.problem:
            return NoStrategy(rejections.cannot_be_priced(), composed.problem)
        if composed.points:
            self._points[key] = composed.points
            return estimate_of(composed.points[0], cluster)
        if composed.least_bytes is None:
            return NoStrategy(rejections.batch_does_not_divide(), f"{self._global_batch:,} over {cluster.devices}")
        needs = f"needs {composed.least_bytes / 2**30:.1f} GiB a device"
        missing = composed.least_bytes - HEADROOM * (cluster.capacity_bytes or 0)
        return NoStrategy(rejections.out_of_memory(), needs, max(0.0, missing))


def estimate_of(point: ComposedPoint, cluster: Cluster) -> Estimate:
    """The estimate that a composed strategy is. Its interval is that of a step of which only datasheets are known."""
    chip, strategy = cluster.chip, point.strategy
    interval = step_interval(point.step_s, {}, chip, strategy, communication=0.0, devices=cluster.devices)
    energy_j = None
    if chip.tdp_w:
        energy_j = chip.tdp_w * parameters().power_share["compute"] * point.step_s * cluster.devices
    return Estimate(strategy, interval, point.device_bytes, energy_j)
