"""BestStrategies: the best strategy of a job on each candidate's hardware, and its exact forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpuwise.errors import GpuwiseError
from gpuwise.notes import Note, rejections
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.no_plan import nearest_fitting
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.request import Request
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints, NoStrategy, no_batch
from gpuwise.plan.space.permission import BATCH
from gpuwise.plan.space.strategies import StrategySearch

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
        with_seq_len: returns the job's traces at another sequence length; None if its length is fixed.
    """

    def __init__(
        self,
        pricer: StepPricer,
        request: Request,
        batch: BatchChoice,
        *,
        with_seq_len: Callable[[int], StepTraces] | None = None,
    ):
        self.pricer, self.request, self.batch = pricer, request, batch
        self.with_seq_len = with_seq_len
        self._strategies = StrategySearch(pricer)

    @property
    def priced(self) -> int:
        """Number of forecasts made."""
        return self.pricer.priced

    def changed(self, traces: StepTraces, request: Request, batch: BatchChoice) -> BestStrategies:
        """What finds the best strategies of a changed job on the same catalog."""
        pricer = StepPricer(traces, catalog=self.pricer.catalog, data=self.pricer.data)
        return BestStrategies(pricer, request, batch, with_seq_len=self.with_seq_len)

    def untried(self) -> tuple[Note, ...]:
        """What the user allows and could not be tried."""
        return self._strategies.untried()

    def best(self, by_key: Mapping[Key, Candidate]) -> dict[Key, Estimate | NoStrategy]:
        """The best strategy on each hardware, or the reason why there is none."""
        return {key: self._best(item) for key, item in by_key.items()}

    def exact(self, item: Candidate, estimate: Estimate) -> Estimate | NoStrategy:
        """The estimate with its memory replayed; the strategy is searched again with replays if little memory is left."""
        forecast = estimate.forecast
        assert forecast is not None
        memory = self.pricer.replayed(forecast.strategy, item.cluster)
        if has_headroom(memory):
            return Estimate.of(replace(forecast, memory=memory), settled=True)
        self._strategies.exact_on.add(item.cluster)
        again = self._best(item)
        return replace(again, settled=True) if isinstance(again, Estimate) else again

    def what_fits(self, by_key: Mapping[Key, Candidate], best: Best) -> tuple[Candidate, FittingChange] | None:
        """The candidate with the smallest shortfall of memory and the change that fits it; None if memory is not the reason."""
        return nearest_fitting(self.pricer, self.request, by_key, best, self.with_seq_len)

    def _best(self, item: Candidate) -> Estimate | NoStrategy:
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
