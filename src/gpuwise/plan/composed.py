"""ComposedStrategies: the best mesh of each cluster, from a model's blocks; and the exact forecasts of what they give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.interval import step_interval
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note, rejections
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.compose.best import BestOnCluster, JobBlocks, best_on
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.compose.verify import Finals, faster_neighbour, verified
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints, NoStrategy
from gpuwise.plan.space.permission import WORTH, not_tried, permitted, permitted_batches
from gpuwise.strategy import Strategy

# Of a micro-batch of more samples no model that needs several machines gains.
_MICRO_BATCHES = (1, 2, 4, 8, 16)
# Of a cluster that is shown the fastest are forecast exactly until so many fit: composed and exact steps differ by 1 %.
_KEPT, _FINALISTS = 12, 1

Choice = tuple[Constraints, BestOnCluster]


class ComposedStrategies:
    """Composes the strategies of a job whose model has repeated blocks.

    Arguments:
        pricer: prices the job's steps.
        request: precision, recompute, micro-batch and techniques that are pinned, and what may be tried beside them.
        global_batch: samples of an optimizer step.
    """

    def __init__(self, pricer: StepPricer, request: Request, *, global_batch: int):
        self._pricer, self._request, self._global_batch = pricer, request, global_batch
        self._blocks: dict[Strategy, JobBlocks] = {}
        self._points: dict[Key, tuple[ComposedPoint, ...]] = {}
        self._problems: dict[Constraints, str] = {}

    def best(self, by_key: Mapping[Key, Candidate]) -> dict[Key, Estimate | NoStrategy]:
        """The best strategy of each cluster, or the reason why there is none. Clusters that nothing is composed for are left
        out: their chip has no trace of blocks, or the user pins what is not composed."""
        request = self._request
        requested = Constraints(
            self._global_batch,
            request.precision,
            request.recompute,
            request.micro_batch,
            techniques=request.techniques,
            allow=request.allow,
        )
        best = {key: (requested, composed) for key, composed in self._composed(requested, by_key).items()}
        if request.allow:
            self._add_permitted(best, by_key, requested)
        return {key: self._estimate(key, by_key[key], composed) for key, (_, composed) in best.items()}

    def untried(self) -> tuple[Note, ...]:
        """Techniques that the user allows and that cannot be composed."""
        return tuple(not_tried(constraints, problem) for constraints, problem in self._problems.items())

    def _add_permitted(self, best: dict[Key, Choice], by_key: Mapping[Key, Candidate], requested: Constraints) -> None:
        """Takes what is worth its permission: techniques first, and then the batch under the best of them."""
        for other in permitted(requested, optimizer=self._own_optimizer()):
            self._take_better(best, by_key, other)
        batches: dict[Constraints, dict[Key, Candidate]] = defaultdict(dict)
        for key, (constraints, _) in best.items():
            for other in permitted_batches(constraints, devices=by_key[key].cluster.devices):
                batches[other][key] = by_key[key]
        for other, candidates in batches.items():
            self._take_better(best, candidates, other)

    def _take_better(self, best: dict[Key, Choice], by_key: Mapping[Key, Candidate], other: Constraints) -> None:
        for key, composed in self._composed(other, by_key).items():
            before = best.get(key)
            if composed.points and (before is None or _sample_s(before) > WORTH * _sample_s((other, composed))):
                best[key] = other, composed

    def _own_optimizer(self) -> str | None:
        """The job's own optimizer; None if it makes its own, or cannot be traced."""
        precision, techniques = self._request.precision, self._request.techniques
        try:
            header = self._pricer.traces.header([precision] if precision else ["amp-bf16", "fp32", "amp-fp16"], techniques)
        except NOT_TRACED:
            return None
        return header.strategy.optimizer

    def _composed(self, constraints: Constraints, by_key: Mapping[Key, Candidate]) -> dict[Key, BestOnCluster]:
        """The fastest strategies of each cluster under some constraints, where they can be composed."""
        groups: dict[tuple[str, ...], list[Key]] = defaultdict(list)
        for key, item in by_key.items():
            groups[tuple(legal.precisions_for(item.chip, constraints.precision))].append(key)
        best: dict[Key, BestOnCluster] = {}
        for precisions, keys in groups.items():
            clusters, problem = [by_key[key].cluster for key in keys], ""
            for precision in precisions:
                try:
                    composed = self._best_on(constraints, precision, clusters)
                except NOT_TRACED as error:
                    problem = problem or error.what
                    continue
                best |= dict(zip(keys, composed, strict=True))
                break
            else:
                if problem and constraints.techniques != self._request.techniques:
                    self._problems.setdefault(constraints, problem)
        return best

    def finals(self, key: Key, cluster: Cluster) -> Finals:
        """The exact forecasts of the fastest strategies of a cluster."""
        return verified(self._points[key], self._pricer, cluster, most=_FINALISTS, lead_on=False)

    def faster(self, forecast: Forecast, cluster: Cluster) -> Forecast | None:
        """A faster strategy that the forecast's leads on to, along axes that are not composed; None without one."""
        pinned = [name for name in ("recompute", "micro_batch") if getattr(self._request, name) is not None]
        return faster_neighbour(forecast, self._pricer, cluster, pinned=pinned)

    def _best_on(self, constraints: Constraints, precision: str, clusters: Sequence[Cluster]) -> list[BestOnCluster]:
        recomputes = ("none", "full") if constraints.recompute is None else (constraints.recompute,)
        techniques = constraints.techniques.but(precision=precision)
        if techniques not in self._blocks:
            usual = [size for size in _MICRO_BATCHES if size <= self._global_batch]
            sizes = usual if constraints.micro_batch is None else [constraints.micro_batch]
            like = self._blocks.get(techniques.but(precision="amp-bf16"))
            self._blocks[techniques] = JobBlocks(self._pricer.traces, techniques, micro_batches=sizes, like=like)
        batch = constraints.global_batch
        return best_on(self._blocks[techniques], clusters, global_batch=batch, recomputes=recomputes, keep=_KEPT)

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


def _sample_s(choice: Choice) -> float:
    """Seconds of a sample; infinite where nothing fits."""
    constraints, composed = choice
    return composed.points[0].step_s / constraints.global_batch if composed.points else math.inf


def estimate_of(point: ComposedPoint, cluster: Cluster) -> Estimate:
    """The estimate that a composed strategy is. Its interval is that of a step of which only datasheets are known."""
    chip, strategy = cluster.chip, point.strategy
    interval = step_interval(point.step_s, {}, chip, strategy, communication=0.0, devices=cluster.devices)
    energy_j = None
    if chip.tdp_w:
        energy_j = chip.tdp_w * parameters().power_share["compute"] * point.step_s * cluster.devices
    return Estimate(strategy, interval, point.device_bytes, energy_j)
