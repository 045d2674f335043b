"""Estimate: the best strategy on some hardware, before or after its exact forecast."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.strategy import Strategy


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
