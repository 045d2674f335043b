"""The second tier of a search: finalists forecast exactly as they would run, and what that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.cost.forecast import Forecast
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.search import ComposedPoint
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import NOT_TRACED


@dataclass(frozen=True)
class Finalist:
    """A strategy of a search with its own forecast.

    Attributes:
        point: as composed.
        forecast: of the strategy alone.
        rank: among the composed points, from 0.
    """

    point: ComposedPoint
    forecast: Forecast
    rank: int

    @property
    def time_change(self) -> float:
        """The forecast's seconds over the composed ones, less 1."""
        return self.forecast.step_time_s.value / self.point.step_s - 1

    @property
    def memory_change(self) -> float:
        """The forecast's bytes over the composed ones, less 1."""
        return self.forecast.memory.device_bytes / self.point.device_bytes - 1


@dataclass(frozen=True)
class Finals:
    """Finalists that fit, the fastest first.

    Attributes:
        finalists: with their forecasts.
        dropped: points that do not fit after all, or cannot be traced, each with the reason.
    """

    finalists: tuple[Finalist, ...]
    dropped: tuple[tuple[ComposedPoint, str], ...]


def verified(points: Sequence[ComposedPoint], pricer: StepPricer, cluster: Cluster, *, replay: bool = True) -> Finals:
    """The exact forecasts of composed points.

    Arguments:
        points: the best first.
        replay: replay the allocator over each step; if False, its memory is counted.
    """
    finalists, dropped = [], []
    for rank, point in enumerate(points):
        try:
            forecast = pricer.forecast(point.strategy, cluster, replay=replay)
        except NOT_TRACED as error:
            dropped.append((point, error.what))
            continue
        if has_headroom(forecast.memory):
            finalists.append(Finalist(point, forecast, rank))
        else:
            dropped.append((point, "does not fit: fragments of its memory are lost"))
    finalists.sort(key=lambda finalist: (finalist.forecast.step_time_s.value, finalist.rank))
    return Finals(tuple(finalists), tuple(dropped))
