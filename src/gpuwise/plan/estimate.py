"""Estimate: the best strategy on some hardware, before or after its exact forecast."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.cost.forecast import Forecast, Interval, MemoryForecast
from gpuwise.cost.price import UNITS
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Strategy
from gpuwise.trace.header import Header


@dataclass(frozen=True)
class Estimate:
    """The best strategy on some hardware.

    Attributes:
        strategy: how a step runs.
        step_time_s: time of one optimizer step, with its 90 % interval.
        device_bytes: memory of the device that needs most.
        energy_j: joules of a step of all devices; None where no TDP is known.
        forecast: forecast of the strategy alone; None (default) where the step is composed of its blocks.
        settled: whether nothing of the estimate is left to verify. False by default.
    """

    strategy: Strategy
    step_time_s: Interval
    device_bytes: float
    energy_j: float | None
    forecast: Forecast | None = None
    settled: bool = False

    @property
    def sample_s(self) -> float:
        """Seconds of a sample of the global batch."""
        return self.step_time_s.value / self.strategy.global_batch

    def to_forecast(self, header: Header, cluster: Cluster) -> Forecast:
        """The forecast; a rough one, whose step counts as arithmetic alone, where the step is composed."""
        if self.forecast is not None:
            return self.forecast
        units = self.strategy.global_batch * header.units_per_sample
        memory = MemoryForecast(
            int(self.device_bytes),
            int(self.device_bytes),
            int(self.device_bytes),
            cluster.capacity_bytes,
            {},
            counted_only=True,
        )
        return Forecast(
            job=header.job,
            device=cluster.chip.id,
            count=cluster.devices,
            strategy=self.strategy,
            step_time_s=self.step_time_s,
            throughput=units / self.step_time_s.value,
            throughput_unit=UNITS.get(header.sample_unit, f"{header.sample_unit}s/s"),
            memory=memory,
            flops_per_step=0,
            mfu=None,
            bound={"compute": 1.0},
            energy_j=self.energy_j,
            provenance={"step_time_s": "composed of blocks", "memory": "composed of blocks"},
        )

    @classmethod
    def of(cls, forecast: Forecast, *, settled: bool = False) -> Estimate:
        """The estimate that a forecast is. settled: whether its memory comes from a replay of the allocator."""
        return cls(
            forecast.strategy,
            forecast.step_time_s,
            forecast.memory.device_bytes,
            forecast.energy_j,
            forecast,
            settled,
        )
