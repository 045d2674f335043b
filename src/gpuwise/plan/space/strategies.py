"""The fastest strategy of a job that fits a cluster: memory first, time only for what can fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.errors import GpuwiseError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note, rejections
from gpuwise.plan.pricing.largest import largest_of
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.plan.space import legal, permission
from gpuwise.plan.space.constraints import Constraints, NoStrategy, why_not
from gpuwise.plan.space.offloading import offloaded
from gpuwise.strategy import Mesh, Strategy

# Below this share of launch time a faster precision shortens the step, so slower precisions are not priced.
LAUNCH_BOUND = 0.2


class StrategySearch:
    """The best strategy of a job on each of many clusters.

    The search counts memory, which takes microseconds. On the clusters in `exact_on` it replays the allocator instead.
    """

    def __init__(self, pricer: StepPricer):
        self.pricer = pricer
        self.exact_on: set[Cluster] = set()
        self._ladders: dict[tuple[object, ...], list[Strategy] | GpuwiseError] = {}
        self._fitting: dict[tuple[object, ...], bool] = {}
        self._optimizers: dict[tuple[str, ...], str | None] = {}
        self._untried: dict[str, Constraints] = {}

    def memory(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """The memory part of `forecast`, without pricing time."""
        return (self.pricer.replayed if cluster in self.exact_on else self.pricer.counted)(strategy, cluster)

    def forecast(self, strategy: Strategy, cluster: Cluster) -> Forecast:
        """The forecast of a strategy on a cluster, with memory counted or replayed as the search needs it."""
        forecast = self.pricer.forecast(strategy, cluster, replay=False)
        if cluster not in self.exact_on:
            return forecast
        return replace(forecast, memory=self.pricer.replayed(strategy, cluster))

    def largest(self, ladder: Sequence[Strategy], cluster: Cluster) -> Forecast | None:
        """The forecast of the last strategy of a ladder that fits a cluster; None if none fits."""
        strategy = largest_of(self.pricer, ladder, cluster, memory=self.memory)
        return None if strategy is None else self.forecast(strategy, cluster)

    def best(self, cluster: Cluster, constraints: Constraints) -> Forecast | NoStrategy:
        """The fastest strategy that fits a cluster, or the reason why there is none.

        What changes the training is tried where it is allowed, and taken where it is worth it.
        """
        best = self._best_as_requested(cluster, constraints)
        if not constraints.allow:
            return best
        taken = constraints
        for other in permission.permitted(constraints, optimizer=self._own_optimizer(cluster, constraints)):
            best, taken = self._better(best, taken, cluster, other)
        for other in permission.permitted_batches(taken, devices=cluster.devices):
            best, taken = self._better(best, taken, cluster, other)
        return best

    def _better(
        self, best: Forecast | NoStrategy, taken: Constraints, cluster: Cluster, other: Constraints
    ) -> tuple[Forecast | NoStrategy, Constraints]:
        """The better of the best so far and what other constraints give, with its constraints."""
        forecast = self._best_as_requested(cluster, other)
        if isinstance(forecast, NoStrategy):
            if forecast.reason == rejections.no_trace():
                self._untried.setdefault(forecast.detail, other)
            return best, taken
        if isinstance(best, NoStrategy) or sample_s(best) > permission.WORTH * sample_s(forecast):
            return forecast, other
        return best, taken

    def untried(self) -> tuple[Note, ...]:
        """Allowed techniques that cannot be forecast."""
        return tuple(permission.not_tried(constraints, problem) for problem, constraints in self._untried.items())

    def _own_optimizer(self, cluster: Cluster, constraints: Constraints) -> str | None:
        """The job's own optimizer; None if it makes its own, or cannot be traced."""
        precisions = tuple(legal.precisions_for(cluster.chip, constraints.precision))
        if precisions not in self._optimizers:
            try:
                header = self.pricer.traces.header(precisions, constraints.techniques)
            except NOT_TRACED:
                self._optimizers[precisions] = None
            else:
                self._optimizers[precisions] = header.strategy.optimizer
        return self._optimizers[precisions]

    def _best_as_requested(self, cluster: Cluster, constraints: Constraints) -> Forecast | NoStrategy:
        """The fastest strategy that changes nothing of the training. Offload is tried where nothing fits without."""
        best = self._best_of(cluster, constraints)
        if not isinstance(best, NoStrategy) or best.reason != rejections.out_of_memory():
            return best
        others = [self._best_of(cluster, other) for other in offloaded(constraints, cluster)]
        if fitting := [other for other in others if not isinstance(other, NoStrategy)]:
            return min(fitting, key=_order)
        short = [other for other in others if isinstance(other, NoStrategy) and other.reason == best.reason]
        return min(best, *short, key=lambda none: none.shortfall_bytes) if short else best

    def _best_of(self, cluster: Cluster, constraints: Constraints) -> Forecast | NoStrategy:
        """The fastest strategy with the very techniques of the constraints."""
        refusal = why_not(cluster, constraints)
        if refusal is not None:
            return refusal
        micro_batches = constraints.micro_batches(cluster)
        precisions = legal.precisions_for(cluster.chip, constraints.precision)
        if not self._may_fit(cluster, constraints, micro_batches):
            return self._shortfall(cluster, constraints, micro_batches[0])

        def best_in(precision: str, refused: PrecisionError | None) -> list[Forecast]:
            forecasts = self._best_in(precision, cluster, constraints, micro_batches)
            notes = () if refused is None else (legal.assumed_precision(precision, refused),)
            return [replace(forecast, assumption_notes=(*forecast.assumption_notes, *notes)) for forecast in forecasts]

        forecasts: list[Forecast] = []
        try:
            for more in legal.in_each_precision(precisions, best_in, refusals=NOT_TRACED):
                forecasts += more
                if forecasts and min(f.bound.get("launch", 0.0) for f in forecasts) < LAUNCH_BOUND:
                    break
        except NOT_TRACED as problem:
            return NoStrategy(rejections.no_trace(), problem.what)
        if not forecasts:
            return self._shortfall(cluster, constraints, micro_batches[0])
        return min(forecasts, key=_order)

    def _best_in(self, precision: str, cluster: Cluster, constraints: Constraints, micro_batches: list[int]) -> list[Forecast]:
        """The largest micro-batch of each mesh. Recomputation and sharding are tried only if memory limits the others.

        Empty if nothing fits. Raises the source's error if it has no variant to try.
        """
        forecasts: list[Forecast] = []
        tried, problem = 0, None
        for mesh in constraints.meshes(cluster):
            for recompute in legal.recomputes_for(constraints.recompute):
                try:
                    ladder = self.ladder(precision, recompute, mesh, constraints, micro_batches)
                    forecast = self.largest(ladder, cluster)
                except NOT_TRACED as error:
                    problem = problem or error
                    continue
                tried += 1
                if forecast is None:
                    continue
                forecasts.append(forecast)
                if forecast.strategy.micro_batch == micro_batches[-1]:
                    break
            if forecasts and not any(crowded(f, micro_batches[-1]) for f in forecasts):
                break
        if not tried and problem is not None:
            raise problem
        return forecasts

    def ladder(
        self, precision: str, recompute: str, mesh: Mesh, constraints: Constraints, micro_batches: Sequence[int]
    ) -> list[Strategy]:
        """Strategies with exactly the global batch, ascending in micro-batch, as far as the family covers them."""
        key = precision, recompute, mesh, constraints, tuple(micro_batches)
        if key not in self._ladders:
            try:
                self._ladders[key] = self._ladder(precision, recompute, mesh, constraints, micro_batches)
            except (UnsupportedError, MissingDependencyError) as error:
                self._ladders[key] = error
        ladder = self._ladders[key]
        if isinstance(ladder, GpuwiseError):
            raise ladder
        return ladder

    def _ladder(
        self, precision: str, recompute: str, mesh: Mesh, constraints: Constraints, micro_batches: Sequence[int]
    ) -> list[Strategy]:
        each = constraints.global_batch // mesh.data_parallel
        whole = constraints.techniques.but(precision=precision, recompute=recompute, mesh=mesh)
        family, given_sizes = self.pricer.traces.family(whole), self.pricer.traces.sizes
        covered = [m for m in micro_batches if self.pricer.traces.covers(whole, m)]
        if not covered:
            sizes = ", ".join(f"{name} {value}" for name, value in given_sizes.items())
            raise UnsupportedError(
                f"{family.header.job} has no trace at {sizes or 'these micro-batches'}.",
                ['install PyTorch to trace it: pip install "gpuwise[torch]"'],
            )
        if not family.header.own_step:
            return [whole.but(micro_batch=m, accumulation=each // m) for m in covered]
        ladder = [whole.but(micro_batch=m) for m in covered if m == each or not constraints.exact]
        if not ladder:
            family.header.check_accumulation(each // covered[-1])  # its error explains why no micro-batch makes that batch
        return ladder

    def _may_fit(self, cluster: Cluster, constraints: Constraints, micro_batches: Sequence[int]) -> bool:
        """Whether the tensors of the smallest micro-batch fit in some way, or nothing can be traced. The first way that fits is
        the last that is traced."""
        key = cluster.chip.id, cluster.capacity_bytes, cluster.devices, constraints, tuple(micro_batches)
        if key not in self._fitting:
            none_traced, fits = True, False
            for peak in self._peaks(cluster, constraints.meshes(cluster), constraints, micro_batches):
                none_traced, fits = False, cluster.capacity_bytes is None or peak <= cluster.capacity_bytes
                if fits:
                    break
            self._fitting[key] = none_traced or fits
        return self._fitting[key]

    def _shortfall(self, cluster: Cluster, constraints: Constraints, micro_batch: int) -> NoStrategy:
        least = None
        for mesh in reversed(constraints.meshes(cluster)):  # a sharded mesh needs least memory
            least = min(self._peaks(cluster, [mesh], constraints, [micro_batch]), default=None)
            if least is not None:
                break
        missing = (least or 0) - (cluster.capacity_bytes or 0)
        more = " and more that is lost to fragments" if missing < 0 else ""
        offload = "" if constraints.techniques.offload == "none" else " with offload"
        needs = f"needs {(least or 0) / 2**30:.1f} GiB a device{offload}{more}"
        return NoStrategy(rejections.out_of_memory(), needs, max(0.0, float(missing)))

    def _peaks(
        self, cluster: Cluster, meshes: Sequence[Mesh], constraints: Constraints, micro_batches: Sequence[int]
    ) -> Iterator[int]:
        """Peak bytes of tensors of the smallest micro-batch, in each way that can be traced.

        Precisions that keep parameters as wide as one before whose parameters and optimizer state alone do not fit are left
        out: each takes a recording.
        """
        hopeless: set[int] = set()  # bytes of an element
        for precision in legal.precisions_for(cluster.chip, constraints.precision):
            element_bytes = constraints.techniques.but(precision=precision).element_bytes
            if element_bytes in hopeless:
                continue
            kept = []
            for mesh, recompute in product(meshes, legal.recomputes_for(constraints.recompute)):
                try:
                    smallest = self.ladder(precision, recompute, mesh, constraints, micro_batches)[0]
                    kept.append(self.pricer.kept_bytes(smallest))
                    yield self.pricer.peak_bytes(smallest)
                except NOT_TRACED:
                    continue
            if kept and cluster.capacity_bytes is not None and min(kept) > cluster.capacity_bytes:
                hopeless.add(element_bytes)


def sample_s(forecast: Forecast) -> float:
    """Seconds of a sample of the global batch."""
    return forecast.step_time_s.value / forecast.strategy.global_batch


def _order(forecast: Forecast) -> tuple[float, int]:
    return sample_s(forecast), forecast.memory.device_bytes


def crowded(forecast: Forecast, largest: int) -> bool:
    """Whether parameters, gradients and optimizer state take enough memory to hold the micro-batch down."""
    memory = forecast.memory
    state = sum(memory.by_category.get(name, 0) for name in ("parameter", "gradient", "optimizer_state"))
    much = memory.capacity_bytes is not None and state > legal.CROWDED * memory.capacity_bytes
    return much and (forecast.strategy.micro_batch < largest or forecast.strategy.recompute != "none")
