"""BestStrategies: the best strategy of a job on each candidate's hardware, and its exact forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuwise.errors import GpuwiseError
from gpuwise.notes import Note, rejections
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.compose.verify import Finals
from gpuwise.plan.composed import ComposedStrategies
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.no_plan import nearest_fitting
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints, NoStrategy, no_batch
from gpuwise.plan.space.permission import BATCH
from gpuwise.plan.space.strategies import StrategySearch, crowded
from gpuwise.plan.verified import Verified

# Where copies of the model spend at most this share of a step on communication, no other mesh is searched.
_LITTLE = 0.05

Best = Mapping[Key, Estimate | NoStrategy]


@dataclass(frozen=True)
class BatchChoice:
    """The global batch of a search.

    Attributes:
        samples: of one optimizer step.
        exact: whether the user set it; a default is moved so that it divides over the devices.
    """

    samples: int
    exact: bool


class BestStrategies:
    """Finds the best strategy of a job on each candidate's hardware.

    Arguments:
        pricer: prices the job's steps.
        request: precision, recompute, batch and techniques that are pinned. Limits and amount do not enter.
        batch: the global batch.
        composes: whether the model has repeated blocks, of which the meshes of several machines are composed.
    """

    def __init__(
        self,
        pricer: StepPricer,
        request: Request,
        batch: BatchChoice,
        *,
        composes: bool = False,
    ):
        self.pricer, self.request, self.batch = pricer, request, batch
        self._strategies = StrategySearch(pricer)
        self._composed = ComposedStrategies(pricer, request, global_batch=batch.samples, exact=batch.exact)
        self._composes = composes
        self._finals: dict[Key, Finals] = {}

    @property
    def priced(self) -> int:
        """Number of strategies that were forecast, on each cluster once."""
        return self.pricer.priced

    @property
    def composed(self) -> int:
        """Number of strategies that were composed of the model's blocks."""
        return self._composed.considered

    def changed(self, traces: StepTraces, request: Request, batch: BatchChoice) -> BestStrategies:
        """What finds the best strategies of a changed job on the same catalog."""
        pricer = StepPricer(traces, catalog=self.pricer.catalog, data=self.pricer.data)
        return BestStrategies(pricer, request, batch, composes=self._composes)

    def untried(self) -> tuple[Note, ...]:
        """What the user allows and could not be tried."""
        return tuple(dict.fromkeys((*self._strategies.untried(), *self._composed.untried())))

    def verified(self) -> Verified | None:
        """What exact forecasts changed of composed strategies; None where none were composed."""
        return Verified.of(self._finals.values()) if self._finals else None

    def best(self, by_key: Mapping[Key, Candidate]) -> dict[Key, Estimate | NoStrategy]:
        """The best strategy on each hardware, or the reason why there is none."""
        several = {key: item for key, item in by_key.items() if item.cluster.devices > 1 and item.chip.kind != "cpu"}
        if not self._is_composed():
            several = {}
        copies = {key: self._best(item, shards=False) for key, item in several.items() if item.cluster.machines == 1}
        enough = {key for key, copy in copies.items() if isinstance(copy, Estimate) and _gains_little(copy)}
        composed = self._composed.best({key: item for key, item in several.items() if key not in enough})
        best: dict[Key, Estimate | NoStrategy] = {}
        for key, item in by_key.items():
            if key in composed:
                best[key] = _faster(composed[key], copies.get(key))
            else:
                best[key] = copies[key] if key in enough else self._best(item)
        return best

    def exact(self, item: Candidate, estimate: Estimate) -> Estimate | NoStrategy:
        """The exact estimate of a candidate, which may be of another strategy.

        The fastest composed strategies are forecast alone; where none of them fits, data parallelism is. Others have their
        memory replayed, and are searched again with replays if little memory is left.
        """
        forecast = estimate.forecast
        if forecast is None:
            return self._exact_of_composed(item)
        memory = self.pricer.replayed(forecast.strategy, item.cluster)
        if has_headroom(memory):
            return Estimate.of(replace(forecast, memory=memory), settled=True)
        self._strategies.exact_on.add(item.cluster)
        again = self._best(item)
        return replace(again, settled=True) if isinstance(again, Estimate) else again

    def led_on(self, item: Candidate, estimate: Estimate) -> Estimate:
        """The estimate of a faster strategy that a composed one leads on to, else the same estimate."""
        if item.key not in self._finals or estimate.forecast is None:
            return estimate
        faster = self._composed.faster(estimate.forecast, item.cluster)
        return estimate if faster is None else Estimate.of(faster, settled=True)

    def _exact_of_composed(self, item: Candidate) -> Estimate | NoStrategy:
        finals = self._composed.finals(item.key, item.cluster)
        self._finals[item.key] = finals
        if finals.best is not None:
            return Estimate.of(finals.best, settled=True)
        # Of the fastest none fits after all. Data parallelism is forecast exactly, and may.
        self._strategies.exact_on.add(item.cluster)
        again = self._best(item)
        if isinstance(again, NoStrategy):
            return NoStrategy(rejections.out_of_memory(), finals.dropped[0][1])
        return replace(again, settled=True)

    def _is_composed(self) -> bool:
        """Whether meshes are composed of blocks: the model has some, and the user pins nothing that is searched with them."""
        request = self.request
        if request.accumulation is not None or request.techniques.optimizer_in_backward:
            return False
        if request.precision == "fp16":  # of one device alone
            return False
        return self._composes

    def what_fits(self, by_key: Mapping[Key, Candidate], best: Best) -> tuple[Candidate, FittingChange] | None:
        """The candidate with the smallest shortfall of memory and the change that fits it; None if memory is not the reason."""
        return nearest_fitting(self.pricer, self.request, by_key, best)

    def _best(self, item: Candidate, *, shards: bool = True) -> Estimate | NoStrategy:
        """The best strategy of data parallelism, forecast. shards: whether parameters may be sharded."""
        cluster, request = item.cluster, self.request
        exact = self.batch.exact and BATCH not in request.allow
        micro_batch, accumulation = request.micro_batch, request.accumulation
        batch = legal.batch_for(
            self.batch.samples, devices=cluster.devices, micro_batch=micro_batch, accumulation=accumulation, exact=exact
        )
        if batch is None:
            return no_batch(cluster, self.batch.samples, micro_batch=micro_batch, accumulation=accumulation)
        constraints = Constraints(
            batch,
            request.precision,
            request.recompute,
            micro_batch,
            accumulation,
            request.techniques,
            exact=exact,
            allow=request.allow,
            shards=shards,
        )
        try:
            best = self._strategies.best(cluster, constraints)
            # Without accumulation a device's whole batch has to fit; a default batch can be smaller.
            while (
                isinstance(best, NoStrategy)
                and request.techniques.optimizer_in_backward
                and not exact
                and batch > cluster.devices
            ):
                batch = max(1, batch // cluster.devices // 2) * cluster.devices
                best = self._strategies.best(cluster, replace(constraints, global_batch=batch))
        except GpuwiseError as error:
            return NoStrategy(rejections.cannot_be_priced(), error.what)
        return best if isinstance(best, NoStrategy) else Estimate.of(best)


def _gains_little(copies: Estimate) -> bool:
    """Whether no other mesh can be much faster than copies of the model: they have the memory that they can use, repeat no
    work and hide their communication."""
    forecast = copies.forecast
    assert forecast is not None
    strategy = forecast.strategy
    if strategy.recompute != "none" or crowded(forecast, strategy.global_batch // strategy.mesh.devices):
        return False
    return forecast.bound.get("communication", 0.0) <= _LITTLE


def _faster(composed: Estimate | NoStrategy, copies: Estimate | NoStrategy | None) -> Estimate | NoStrategy:
    """The faster of what is composed and of copies of the model; copies where both are as fast."""
    if not isinstance(copies, Estimate):
        return composed
    return composed if isinstance(composed, Estimate) and composed.sample_s < copies.sample_s else copies
