"""StepPricer: what one step of a job takes on a cluster, in time and in memory."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.cost.memory.allocator import replay
from gpuwise.cost.memory.device import blas_workspace_bytes, memory_forecast
from gpuwise.cost.memory.events import step_events
from gpuwise.cost.offload import lengthened, offload
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price
from gpuwise.cost.rates import family
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import host_link
from gpuwise.hardware.types import Chip
from gpuwise.notes.step import random_numbers_not_priced
from gpuwise.plan.cpu.compile_time import drawing_s, slowed
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.trace import Trace

HEADROOM = 0.95  # of a device's memory: a forecast of memory is a forecast, and a run that dies of it costs most


class StepPricer:
    """Strategies of one job priced on clusters. What is asked twice is computed once.

    Arguments:
        traces: of the job.
        catalog: where the links to the host come from; the shipped one where None.
        data: the pipeline that delivers the batches.
    """

    def __init__(self, traces: StepTraces, *, catalog: Catalog | None = None, data: DataPipeline = READY):
        self.traces, self.catalog, self.data = traces, catalog or load_catalog(), data
        self.priced = 0  # forecasts made
        self._replayed: dict[tuple[Strategy, Cluster], MemoryForecast] = {}
        self._peaks: dict[Strategy, int] = {}
        self._counted: dict[tuple[Strategy, str, int], tuple[int, int]] = {}
        self._fits: dict[tuple[Strategy, Cluster, bool], bool] = {}
        self._reserved: dict[tuple[Strategy, int, bool], int] = {}

    def trace(self, strategy: Strategy) -> Trace:
        """What one rank does under a strategy."""
        return self.traces.trace(strategy)[0]

    def forecast(
        self, strategy: Strategy, cluster: Cluster, *, usd_per_hour: float | None = None, replay: bool = True
    ) -> Forecast:
        """The forecast of a step: its kernels, what offloading adds, and random numbers of compiled steps on a CPU.

        Arguments:
            usd_per_hour: as for gpuwise.cost.price.price.
            replay: run the allocator over the step; without, its memory is counted.

        Raises what tracing and pricing raise.
        """
        self.priced += 1
        trace, communication = self.traces.trace(strategy)
        forecast = price(
            trace, communication, cluster, strategy=strategy, data=self.data, usd_per_hour=usd_per_hour, replay=replay
        )
        if replay:
            self._remember_reserved(strategy, cluster.chip, forecast.memory)
        if strategy.offload != "none":
            plain = self.trace(strategy.but(offload="none"))
            forecast = lengthened(forecast, offload(plain, strategy, host_link(cluster.chip, self.catalog), parameters()))
        if strategy.compile and cluster.chip.kind == "cpu":
            forecast = self._with_drawing(forecast, cluster.chip)
        return forecast

    def _with_drawing(self, compiled: Forecast, chip: Chip) -> Forecast:
        """With the random numbers of compiled steps, which only the trace of eager ones counts."""
        try:
            eager = self.trace(compiled.strategy.but(compile=False))
        except (UnsupportedError, MissingDependencyError) as error:  # a saved trace has no other
            note = random_numbers_not_priced(problem=error.what)
            return replace(compiled, assumption_notes=(*compiled.assumption_notes, note))
        return slowed(compiled, drawing_s(eager, chip))

    def counted(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """Memory of a step by its live bytes: microseconds, for searches."""
        return memory_forecast(self.trace(strategy), cluster, parameters=parameters(), replay=False)

    def replayed(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """Memory of a step as the allocator serves it."""
        if (strategy, cluster) not in self._replayed:
            self._replayed[strategy, cluster] = memory_forecast(
                self.trace(strategy), cluster, parameters=parameters(), expandable=False
            )
        return self._replayed[strategy, cluster]

    def peak_bytes(self, strategy: Strategy) -> int:
        """Peak bytes of tensors on one device: what a device must have at the very least."""
        if strategy not in self._peaks:
            key = strategy.but(precision=strategy.recorded_precision, accumulation=1 + (strategy.accumulation > 1))
            if key not in self._peaks:
                self._peaks[key] = live_bytes(self.trace(strategy.but(accumulation=key.accumulation))).peak_bytes
            self._peaks[strategy] = self._peaks[key]
        return self._peaks[strategy]

    def needed_bytes(self, strategy: Strategy, cluster: Cluster) -> int:
        """Bytes of tensors, and of what stands outside the allocator: what this device must have at the very least."""
        tensors, outside = self._tensors_and_outside(strategy, cluster)
        return tensors + outside

    def fits(self, strategy: Strategy, cluster: Cluster, *, expandable: bool = False) -> bool:
        """Whether the device serves every request of a step, as its allocator decides it; a CPU by counted bytes.

        Arguments:
            expandable: the allocator's segments are (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
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
            trace = self.traces.latest_trace(strategy)[0]
            memory = memory_forecast(trace, cluster, parameters=parameters(), replay=False)
            self._counted[key] = memory.peak_allocated_bytes, memory.device_bytes - memory.peak_reserved_bytes
        return self._counted[key]

    def _served(self, strategy: Strategy, chip: Chip, limit_bytes: int, *, expandable: bool) -> bool:
        """Whether the allocator serves a step from so many bytes; at once where it is known to reserve no more."""
        trace = self.traces.latest_trace(strategy)[0]
        workspace = blas_workspace_bytes(trace, chip, parameters())
        key = (strategy, workspace, expandable)
        if self._reserved.get(key, limit_bytes + 1) <= limit_bytes:
            return True
        events = step_events(trace, blas_workspace_bytes=workspace)
        run = replay(events.size_bytes.tolist(), events.order.tolist(), limit_bytes=limit_bytes, expandable=expandable)
        if run.out_of_memory is None and not run.cache_releases:
            self._reserved[key] = run.peak_reserved_bytes
        return run.out_of_memory is None

    def _remember_reserved(self, strategy: Strategy, chip: Chip, memory: MemoryForecast) -> None:
        """Keeps what a step reserves where it never has to give cached blocks back."""
        if not memory.counted_only and not memory.cache_releases:
            workspace = blas_workspace_bytes(self.trace(strategy), chip, parameters())
            self._reserved[strategy, workspace, False] = memory.peak_reserved_bytes


def has_headroom(memory: MemoryForecast) -> bool:
    """Whether some of the device is left. True where its memory is unknown."""
    return memory.capacity_bytes is None or memory.device_bytes <= HEADROOM * memory.capacity_bytes
