"""ComposedStrategies: the best mesh of each cluster, from a model's blocks; and the exact forecasts of what they give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.interval import step_interval
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note, rejections
from gpuwise.notes import plan as notes
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.compose.best import BestOnCluster, JobBlocks, best_on, least_device_bytes
from gpuwise.plan.compose.job_arrays import variants_of
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.compose.verify import Finals, faster_neighbour, verified
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints, NoStrategy, no_batch
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
        exact: whether the user set it; a default is moved so that it divides over the devices of a machine.
    """

    def __init__(self, pricer: StepPricer, request: Request, *, global_batch: int, exact: bool):
        self._pricer, self._request, self._global_batch, self._exact = pricer, request, global_batch, exact
        self._blocks: dict[Strategy, JobBlocks] = {}
        self._points: dict[Key, tuple[ComposedPoint, ...]] = {}
        self._problems: dict[Constraints, str] = {}
        self.considered = 0  # strategies that the best were chosen from

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
        best: dict[Key, Choice] = {}
        batches: dict[int, dict[Key, Candidate]] = defaultdict(dict)
        for key, item in by_key.items():
            batches[self._batch_on(item.cluster)][key] = item
        for batch, candidates in batches.items():
            these = replace(requested, global_batch=batch)
            best |= {key: (these, composed) for key, composed in self._composed(these, candidates).items()}
        if request.allow:
            self._add_permitted(best, by_key, requested)
        return {key: self._estimate(key, by_key[key], composed) for key, (_, composed) in best.items() if not composed.problem}

    def _batch_on(self, cluster: Cluster) -> int:
        """The global batch on a cluster. On a single machine a default batch moves to a multiple of its devices."""
        if self._exact or cluster.machines > 1:
            return self._global_batch
        batch = legal.batch_for(self._global_batch, devices=cluster.devices, micro_batch=self._request.micro_batch, exact=False)
        return batch or self._global_batch

    def untried(self) -> tuple[Note, ...]:
        """Meshes, and techniques that the user allows, that cannot be composed."""
        requested = self._request.techniques
        techniques = {of: problem for of, problem in self._problems.items() if of.techniques != requested}
        of_meshes = [problem for of, problem in self._problems.items() if of not in techniques]
        of_meshes += [problem for blocks in self._blocks.values() for problem in blocks.problems]
        return (
            *(notes.meshes_not_tried(problem=problem.removesuffix(".")) for problem in dict.fromkeys(of_meshes)),
            *(not_tried(constraints, problem) for constraints, problem in techniques.items()),
        )

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
        remaining = {key: legal.precisions_for(item.chip, constraints.precision) for key, item in by_key.items()}
        best: dict[Key, BestOnCluster] = {}
        problem = ""
        while remaining := {key: precisions for key, precisions in remaining.items() if precisions}:
            groups: dict[tuple[str, bool], list[Key]] = defaultdict(list)
            for key, precisions in remaining.items():
                groups[precisions[0], by_key[key].cluster.machines == 1].append(key)
            for (precision, _), keys in sorted(groups.items()):  # amp-fp16 takes what it shares with amp-bf16 from it
                try:
                    composed = self._best_on(constraints, precision, [by_key[key].cluster for key in keys])
                except NOT_TRACED as error:
                    problem = problem or error.what
                    remaining |= {key: remaining[key][1:] for key in keys}
                else:
                    best |= dict(zip(keys, composed, strict=True))
                    remaining = {key: rest for key, rest in remaining.items() if key not in best}
        if problem and not best:
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
        """The best of clusters that are all single machines, or all several."""
        single = clusters[0].machines == 1
        recomputes = legal.recomputes_for(constraints.recompute)
        techniques = constraints.techniques.but(precision=precision)
        if techniques not in self._blocks:
            sizes = [size for size in _MICRO_BATCHES if size <= self._global_batch]
            sizes = sizes if constraints.micro_batch is None else [constraints.micro_batch]
            like = self._blocks.get(techniques.but(precision="amp-bf16"))
            self._blocks[techniques] = JobBlocks(self._pricer.traces, techniques, micro_batches=sizes, like=like)
        blocks, batch = self._blocks[techniques], constraints.global_batch
        least = [least_device_bytes(blocks, cluster) for cluster in clusters]
        limits = [HEADROOM * (cluster.capacity_bytes or math.inf) for cluster in clusters]
        holds = [each <= limit for each, limit in zip(least, limits, strict=True)]
        large = [cluster for cluster, enough in zip(clusters, holds, strict=True) if enough]
        composed = iter(
            best_on(
                blocks, large, global_batch=batch, recomputes=recomputes, keep=_KEPT, variants=_few_variants if single else None
            )
        )
        result = [next(composed) if enough else BestOnCluster((), each) for enough, each in zip(holds, least, strict=True)]
        self.considered += sum(each.considered for each in result)
        return result

    def _estimate(self, key: Key, item: Candidate, composed: BestOnCluster) -> Estimate | NoStrategy:
        cluster = item.cluster
        if composed.points:
            self._points[key] = composed.points
            return estimate_of(composed.points[0], cluster)
        if composed.least_bytes is None:
            return no_batch(cluster, self._global_batch, micro_batch=self._request.micro_batch, accumulation=None)
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
        energy_j = chip.tdp_w * parameters().power["composed"] * point.step_s * cluster.devices
    return Estimate(strategy, interval, point.device_bytes, energy_j)


def _few_variants(recomputes: Sequence[str], *, tp: int, seq_len: int | None) -> tuple[BlockVariant, ...]:
    """The variants of blocks that are tried on a single machine, which many offers are and which are to be answered in no time.

    Tensor-parallel ranks divide sequences and the loss where they can: they send as many bytes and hold less. They compute
    nothing or all again.
    """
    if tp == 1:
        return variants_of(recomputes, tp=1, seq_len=seq_len)
    divided = seq_len is not None and seq_len % tp == 0
    return tuple(
        BlockVariant(recompute, divided, True) for recompute in recomputes if recompute != "selective" or len(recomputes) == 1
    )
