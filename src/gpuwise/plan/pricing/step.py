"""StepPricer: the time and memory of one step of a job on a cluster."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.cost.memory.device import blas_workspace_bytes, memory_forecast
from gpuwise.cost.memory.events import step_events
from gpuwise.cost.offload import lengthened, offload
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price_ranks
from gpuwise.cost.rank_time import rank_times, slowest
from gpuwise.cost.rates import family
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import host_link
from gpuwise.hardware.types import Chip
from gpuwise.notes.parallel import worst_rank
from gpuwise.notes.step import random_numbers_not_priced
from gpuwise.plan.cpu.compile_time import drawing_s, slowed
from gpuwise.plan.pricing.traces import StepTraces, largest_rank
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.memory import kept_bytes, live_bytes
from gpuwise.trace.trace import Trace

HEADROOM = 0.95  # usable share of a device's memory: a forecast may be off, and a run that is out of memory is lost


class StepPricer:
    """Prices strategies of one job on clusters. Results are cached.

    Arguments:
        traces: the job's traces.
        catalog: source of the links to the host; None takes the shipped catalog.
        data: the data pipeline that delivers the batches.
    """

    def __init__(self, traces: StepTraces, *, catalog: Catalog | None = None, data: DataPipeline = READY):
        self.traces, self.catalog, self.data = traces, catalog or load_catalog(), data
        self._forecast: set[tuple[Strategy, Cluster]] = set()
        self._replayed: dict[tuple[Strategy, Cluster], MemoryForecast] = {}
        self._peaks: dict[Strategy, int] = {}
        self._counted: dict[tuple[Strategy, str, int], tuple[int, int]] = {}
        self._fits: dict[tuple[Strategy, Cluster, bool], bool] = {}
        self._reserved: dict[tuple[Strategy, int, bool], int] = {}

    @property
    def priced(self) -> int:
        """Number of strategies that were forecast, on each cluster once."""
        return len(self._forecast)

    def trace(self, strategy: Strategy) -> Trace:
        """The trace of one rank under a strategy."""
        return self.traces.trace(strategy)

    def forecast(
        self,
        strategy: Strategy,
        cluster: Cluster,
        *,
        usd_per_hour: float | None = None,
        replay: bool = True,
        expandable: bool = True,
    ) -> Forecast:
        """The forecast of a step: kernels, offloading, and the random numbers of compiled steps on a CPU.

        Arguments:
            usd_per_hour: as for gpuwise.cost.price.price_ranks.
            replay: replay the allocator over the step; if False, live bytes are counted.
            expandable: whether what would fit with expandable segments is wanted too, which may take another replay.

        Raises the errors of tracing and pricing.
        """
        self._forecast.add((strategy, cluster))
        forecast = self._slowest(strategy, cluster, usd_per_hour=usd_per_hour, replay=replay and expandable)
        if replay and not expandable:
            forecast = replace(forecast, memory=self.replayed(strategy, cluster))
        if replay:
            self._remember_reserved(strategy, cluster.chip, forecast.memory)
        if strategy.offload != "none":
            plain = self.trace(strategy.but(offload="none"))
            forecast = lengthened(forecast, offload(plain, strategy, host_link(cluster.chip, self.catalog), parameters()))
        if strategy.compile and cluster.chip.kind == "cpu":
            forecast = self._with_drawing(forecast, cluster.chip)
        return forecast

    def _slowest(self, strategy: Strategy, cluster: Cluster, *, usd_per_hour: float | None, replay: bool) -> Forecast:
        """The price of the slowest rank among the others, with the memory of the one that needs most."""
        ranks = self.traces.ranks(strategy)
        times = rank_times(ranks, cluster, strategy=strategy)
        forecast = price_ranks(
            times,
            cluster,
            strategy=strategy,
            data=self.data,
            usd_per_hour=usd_per_hour,
            replay=replay and len(ranks) == 1,
        )
        if len(ranks) == 1:
            return forecast
        largest = largest_rank(ranks)
        memory = memory_forecast(largest.trace, cluster, parameters=parameters(), replay=replay)
        note = worst_rank(rank=largest.name, memory_bytes=memory.device_bytes, slowest=slowest(times).step.name)
        return replace(forecast, memory=memory, assumption_notes=(*forecast.assumption_notes, note))

    def _with_drawing(self, compiled: Forecast, chip: Chip) -> Forecast:
        """The forecast with the random numbers of a compiled step, which are counted only in the eager trace."""
        try:
            eager = self.trace(compiled.strategy.but(compile=False))
        except (UnsupportedError, MissingDependencyError) as error:  # a saved trace holds one variant only
            note = random_numbers_not_priced(problem=error.what)
            return replace(compiled, assumption_notes=(*compiled.assumption_notes, note))
        return slowed(compiled, drawing_s(eager, chip))

    def counted(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """Memory of a step from its live bytes. This takes microseconds; searches use it."""
        return memory_forecast(self.trace(_as_large(strategy)), cluster, parameters=parameters(), replay=False)

    def replayed(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """Memory of a step from a replay of the allocator."""
        if (strategy, cluster) not in self._replayed:
            self._replayed[strategy, cluster] = memory_forecast(
                self.trace(strategy), cluster, parameters=parameters(), expandable=False
            )
        return self._replayed[strategy, cluster]

    def peak_bytes(self, strategy: Strategy) -> int:
        """Peak bytes of tensors on one device: a lower bound of the memory needed."""
        if strategy not in self._peaks:
            trace = self.trace(_as_large(strategy))
            self._peaks[strategy] = trace.once("live", lambda: live_bytes(trace)).peak_bytes
        return self._peaks[strategy]

    def kept_bytes(self, strategy: Strategy) -> int:
        """Bytes of parameters and optimizer state on one device."""
        trace = self.trace(_as_large(strategy))
        return trace.once("kept", lambda: kept_bytes(trace))

    def needed_bytes(self, strategy: Strategy, cluster: Cluster) -> int:
        """Bytes of tensors and of everything outside the allocator: a lower bound of the memory needed on this device."""
        tensors, outside = self._tensors_and_outside(strategy, cluster)
        return tensors + outside

    def fits(self, strategy: Strategy, cluster: Cluster, *, expandable: bool = False) -> bool:
        """Whether every allocation of a step succeeds in a replay of the allocator; on a CPU, whether the counted bytes fit.

        Arguments:
            expandable: replay with expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
        """
        capacity = cluster.capacity_bytes
        if capacity is None or family(cluster.chip) != "gpu":
            return capacity is None or self.needed_bytes(strategy, cluster) <= capacity
        tensors, outside = self._tensors_and_outside(strategy, cluster)
        if tensors + outside > capacity:
            return False
        key = (strategy, cluster, expandable)
        if key not in self._fits:
            self._fits[key] = self._served(strategy, cluster.chip, capacity - outside, expandable=expandable)
        return self._fits[key]

    def _tensors_and_outside(self, strategy: Strategy, cluster: Cluster) -> tuple[int, int]:
        key = (strategy, cluster.chip.id, cluster.devices)
        if key not in self._counted:
            trace = self.traces.latest_trace(strategy)
            memory = memory_forecast(trace, cluster, parameters=parameters(), replay=False)
            self._counted[key] = memory.peak_allocated_bytes, memory.device_bytes - memory.peak_reserved_bytes
        return self._counted[key]

    def _served(self, strategy: Strategy, chip: Chip, limit_bytes: int, *, expandable: bool) -> bool:
        """Whether a step fits in this many bytes. No replay is needed if the step is known to reserve no more."""
        trace = self.traces.latest_trace(strategy)
        workspace = blas_workspace_bytes(trace, chip, parameters())
        key = (strategy, workspace, expandable)
        if self._reserved.get(key, limit_bytes + 1) <= limit_bytes:
            return True
        events = step_events(trace, blas_workspace_bytes=workspace)
        run = events.replay(limit_bytes=limit_bytes, expandable=expandable)
        if run.out_of_memory is None and not run.cache_releases:
            self._reserved[key] = run.peak_reserved_bytes
        return run.out_of_memory is None

    def _remember_reserved(self, strategy: Strategy, chip: Chip, memory: MemoryForecast) -> None:
        """Remembers the bytes that a step reserves if it never has to return cached blocks to the driver."""
        if not memory.counted_only and not memory.cache_releases:
            workspace = blas_workspace_bytes(self.trace(strategy), chip, parameters())
            self._reserved[strategy, workspace, False] = memory.peak_reserved_bytes


def _as_large(strategy: Strategy) -> Strategy:
    """A strategy whose ranks hold as much, the same one for many: of two micro-batches for any number of them above one, and of
    two replicas of the whole model for any number of those."""
    mesh = strategy.mesh
    return strategy.but(
        precision=strategy.recorded_precision,
        accumulation=min(2, strategy.accumulation),
        mesh=Mesh(dp_replicate=2) if mesh.dp_replicate == mesh.devices > 1 else mesh,
    )


def has_headroom(memory: MemoryForecast) -> bool:
    """Whether the step leaves headroom on the device. True if the device's memory is unknown."""
    return memory.capacity_bytes is None or memory.device_bytes <= HEADROOM * memory.capacity_bytes
