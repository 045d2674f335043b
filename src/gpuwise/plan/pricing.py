"""Strategies of one job priced on chips: memory first, time only for what can fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.inputs import DataPipeline
from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError, InputError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note, rejections
from gpuwise.plan.space import legal
from gpuwise.plan.space.micro_batch import MOST_MICRO_BATCH, largest_micro_batch
from gpuwise.plan.step import forecast_of
from gpuwise.plan.traces import Traces
from gpuwise.plan.types import TraceSource
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.header import Header
from gpuwise.trace.memory import live_bytes

# Below this share of launches a step gains from a faster precision, so the slower ones need no pricing.
LAUNCH_BOUND = 0.2
HEADROOM = 0.95
# A strategy that cannot be had: not recorded, no package to trace it with, or techniques that exclude each other.
_NOT_TRACED = (UnsupportedError, MissingDependencyError, InputError)


@dataclass(frozen=True)
class Constraints:
    """What the user pinned, and the batch an optimizer step has to see. techniques: the fields that are not searched.

    exact: the batch is the user's own; else a job whose step takes one micro-batch may have a smaller one.
    """

    global_batch: int
    precision: str | None = None
    recompute: str | None = None
    micro_batch: int | None = None
    accumulate: int | None = None
    techniques: Strategy = field(default_factory=Strategy)
    exact: bool = True


@dataclass(frozen=True)
class NoStrategy:
    """Why no strategy runs on a cluster. shortfall_bytes: memory missing on each device, to name the nearest."""

    reason: Note
    detail: str = ""
    shortfall_bytes: float = 0.0


@dataclass
class Pricer:
    """Strategies of one job priced on places. Arguments and `traces` as gpuwise.plan.traces.Traces has them.

    catalog: where links to the host come from. loader_samples_per_s: what the data pipeline of a machine delivers.
    replay: forecasts run the allocator; what only decides how large a micro-batch may be counts. replays: places whose
    forecasts do so in any case. priced: forecasts made.
    """

    source: InitVar[TraceSource]
    sizes: Mapping[str, int] = field(default_factory=dict)
    optimizer: str | None = None
    mode: str = "train"
    catalog: Catalog = field(default_factory=load_catalog)
    loader_samples_per_s: float | None = None
    replay: bool = True
    priced: int = 0
    replays: set[Cluster] = field(default_factory=set)
    traces: Traces = field(init=False)
    _peaks: dict[Strategy, int] = field(default_factory=dict)
    _ladders: dict[tuple[object, ...], list[Strategy] | GpuwiseError] = field(default_factory=dict)
    _replayed: dict[tuple[Strategy, Cluster], MemoryForecast] = field(default_factory=dict)

    def __post_init__(self, source: TraceSource) -> None:
        self.traces = Traces(source, self.sizes, self.optimizer, self.mode)

    def family(self, strategy: Strategy) -> TraceFamily:
        """The family a strategy is composed from. Raises what the source raised, UnsupportedError above all."""
        return self.traces.family(strategy)

    def header(self, precisions: Iterable[str], techniques: Strategy) -> Header:
        """The header of the first variant that can be had, at the sizes asked for. Raises the source's first error."""
        return self.traces.header(precisions, techniques)

    def memory(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """What `forecast` says of memory, without pricing time."""
        if cluster in self.replays:
            return self.replayed(strategy, cluster)
        trace, _ = self.traces.trace(strategy)
        return memory_forecast(trace, cluster, parameters=parameters(), replay=self.replay)

    def replayed(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """Memory as the cluster's allocator serves the step; run once for a strategy on a cluster."""
        if (strategy, cluster) not in self._replayed:
            trace, _ = self.traces.trace(strategy)
            self._replayed[strategy, cluster] = memory_forecast(trace, cluster, parameters=parameters(), expandable=False)
        return self._replayed[strategy, cluster]

    def largest_micro_batch(self, strategy: Strategy, cluster: Cluster, *, most: int = MOST_MICRO_BATCH) -> int | None:
        """The largest micro-batch that fits a cluster, at most `most`; None where one sample does not fit."""
        return largest_micro_batch(self.traces, strategy, cluster, most=most)

    def peak_bytes(self, strategy: Strategy) -> int:
        """Peak bytes of tensors on one device: what a device must have at the very least."""
        if strategy not in self._peaks:
            key = strategy.but(precision=strategy.recorded_precision, accumulation=1 + (strategy.accumulation > 1))
            if key not in self._peaks:
                self._peaks[key] = live_bytes(self.traces.trace(strategy.but(accumulation=key.accumulation))[0]).peak_bytes
            self._peaks[strategy] = self._peaks[key]
        return self._peaks[strategy]

    def forecast(self, strategy: Strategy, cluster: Cluster) -> Forecast:
        """One strategy priced on one cluster."""
        self.priced += 1
        found = forecast_of(
            self.traces.trace,
            strategy,
            cluster,
            catalog=self.catalog,
            data=DataPipeline(self.loader_samples_per_s),
            replay=self.replay,
        )
        return replace(found, memory=self.replayed(strategy, cluster)) if cluster in self.replays else found

    def largest(self, strategies: Sequence[Strategy], cluster: Cluster) -> Forecast | None:
        """The forecast of the last of `strategies` (ascending in memory) that fits the cluster; None where none does.

        What leaves some headroom goes first: a forecast of memory is a forecast, and a run that dies of it costs most.
        """
        fit = len(strategies)
        if cluster.capacity_bytes is not None and self.peak_bytes(strategies[-1]) > cluster.capacity_bytes:
            fit = bisect_right(strategies, cluster.capacity_bytes, key=self.peak_bytes)
        tight = None
        for strategy in reversed(strategies[:fit]):
            memory = self.memory(strategy, cluster)
            if has_headroom(memory):
                return self.forecast(strategy, cluster)
            if memory.fits:
                tight = strategy  # the smallest of those that only just fit: better than none
        return None if tight is None else self.forecast(tight, cluster)

    def best(self, cluster: Cluster, constraints: Constraints) -> Forecast | NoStrategy:
        """The fastest strategy that fits a cluster, or why there is none."""
        if constraints.global_batch % cluster.devices:
            return NoStrategy(rejections.batch_does_not_divide(), f"{constraints.global_batch} over {cluster.devices}")
        accumulate = (
            1 if constraints.techniques.optimizer_in_backward else constraints.accumulate
        )  # it leaves nothing to accumulate
        micro_batches = legal.micro_batches(constraints.global_batch // cluster.devices, constraints.micro_batch, accumulate)
        if not micro_batches:
            return NoStrategy(rejections.micro_batch_does_not_divide())
        precisions = legal.precisions_for(cluster.chip, constraints.precision)
        if not precisions:
            return NoStrategy(rejections.precision_unsupported(), constraints.precision or "")
        found: list[Forecast] = []
        problems: list[GpuwiseError] = []
        for precision in precisions:
            if found and min(f.bound.get("launch", 0.0) for f in found) < LAUNCH_BOUND:
                break
            try:
                found += self._best_in(precision, cluster, constraints, micro_batches)
            except _NOT_TRACED as error:
                problems.append(error)
        if found:
            best = min(found, key=lambda f: (f.step_time_s.value / f.strategy.global_batch, f.memory.device_bytes))
            refused = next((error for error in problems if isinstance(error, PrecisionError)), None)
            if refused is None or constraints.precision is not None:
                return best
            note = legal.assumed_precision(best.strategy.precision, refused)
            return replace(best, assumption_notes=(*best.assumption_notes, note))
        if len(problems) == len(precisions):
            return NoStrategy(rejections.no_trace(), problems[0].what)
        return self._shortfall(precisions, cluster, constraints, micro_batches[0])

    def _best_in(self, precision: str, cluster: Cluster, constraints: Constraints, micro_batches: list[int]) -> list[Forecast]:
        """The largest micro-batch of each mesh; recomputation and sharding only where memory limits what is had.

        Empty where nothing fits. Raises what the source raised where it has no variant to try at all.
        """
        found: list[Forecast] = []
        tried, problem = 0, None
        for mesh in legal.meshes(cluster.devices):
            for recompute in legal.recomputes_for(constraints.recompute):
                try:
                    ladder = self.ladder(precision, recompute, mesh, constraints, micro_batches)
                    forecast = self.largest(ladder, cluster)
                except _NOT_TRACED as error:
                    problem = problem or error
                    continue
                tried += 1
                if forecast is None:
                    continue
                found.append(forecast)
                if forecast.strategy.micro_batch == micro_batches[-1]:
                    break
            if found and not any(_crowded(f, micro_batches[-1]) for f in found):
                break
        if not tried and problem is not None:
            raise problem
        return found

    def ladder(
        self, precision: str, recompute: str, mesh: Mesh, constraints: Constraints, micro_batches: Sequence[int]
    ) -> list[Strategy]:
        """Strategies of exactly the global batch, ascending in micro-batch, as far as the family knows them."""
        key = precision, recompute, mesh, constraints, tuple(micro_batches)
        if key not in self._ladders:
            try:
                self._ladders[key] = self._ladder(precision, recompute, mesh, constraints, micro_batches)
            except (UnsupportedError, MissingDependencyError) as error:
                self._ladders[key] = error
        found = self._ladders[key]
        if isinstance(found, GpuwiseError):
            raise found
        return found

    def _ladder(
        self, precision: str, recompute: str, mesh: Mesh, constraints: Constraints, micro_batches: Sequence[int]
    ) -> list[Strategy]:
        each = constraints.global_batch // mesh.data_parallel
        whole = constraints.techniques.but(precision=precision, recompute=recompute, mesh=mesh, mode=self.mode)
        family = self.family(whole)
        known = [m for m in micro_batches if family.covers({**self.sizes, "micro_batch": m})]
        if not known:
            sizes = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
            raise UnsupportedError(
                f"{family.header.job} has no trace at {sizes or 'these micro-batches'}.",
                ['install PyTorch to trace it: pip install "gpuwise[torch]"'],
            )
        if not family.header.own_step:
            return [whole.but(micro_batch=m, accumulation=each // m) for m in known]
        ladder = [whole.but(micro_batch=m) for m in known if m == each or not constraints.exact]
        if not ladder:
            family.header.check_accumulation(each // known[-1])  # says why nothing makes that batch
        return ladder

    def _shortfall(self, precisions: list[str], cluster: Cluster, constraints: Constraints, micro_batch: int) -> NoStrategy:
        least = None
        for mesh in reversed(legal.meshes(cluster.devices)):  # sharded needs least, where it can be had
            for precision in precisions:
                for recompute in legal.recomputes_for(constraints.recompute):
                    try:
                        peak = self.peak_bytes(self.ladder(precision, recompute, mesh, constraints, [micro_batch])[0])
                    except _NOT_TRACED:
                        continue
                    least = peak if least is None else min(least, peak)
            if least is not None:
                break
        missing = (least or 0) - (cluster.capacity_bytes or 0)
        more = " and more that is lost to fragments" if missing < 0 else ""
        needs = f"needs {(least or 0) / 2**30:.1f} GiB a device{more}"
        return NoStrategy(rejections.out_of_memory(), needs, max(0.0, float(missing)))


def has_headroom(memory: MemoryForecast) -> bool:
    """Whether some of the device is left: a forecast of memory is a forecast. True where its memory is unknown."""
    return memory.capacity_bytes is None or memory.device_bytes <= HEADROOM * memory.capacity_bytes


def _crowded(forecast: Forecast, largest: int) -> bool:
    """Whether parameters, gradients and optimizer state take enough memory to hold the micro-batch down."""
    memory = forecast.memory
    state = sum(memory.by_category.get(name, 0) for name in ("parameter", "gradient", "optimizer_state"))
    crowded = memory.capacity_bytes is not None and state > legal.CROWDED * memory.capacity_bytes
    return crowded and (forecast.strategy.micro_batch < largest or forecast.strategy.recompute != "none")
