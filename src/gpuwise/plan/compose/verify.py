"""The second tier of a search: finalists forecast exactly as they would run, and what that changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuwise.cost.forecast import Forecast
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.plan.space.neighbours import neighbours
from gpuwise.trace.parallel.experts import experts_of

_MOST_STEPS = 4  # from neighbour to neighbour


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
        faster: the forecast of a faster strategy, reached from the first finalist along axes that are not composed (see
            gpuwise.plan.space.neighbours); None (default) without any.
    """

    finalists: tuple[Finalist, ...]
    dropped: tuple[tuple[ComposedPoint, str], ...]
    faster: Forecast | None = None

    @property
    def best(self) -> Forecast | None:
        """The fastest forecast; None where nothing fits."""
        return self.faster or (self.finalists[0].forecast if self.finalists else None)


def verified(
    points: Sequence[ComposedPoint],
    pricer: StepPricer,
    cluster: Cluster,
    *,
    replay: bool = True,
    most: int | None = None,
    lead_on: bool = True,
) -> Finals:
    """The exact forecasts of composed points.

    Arguments:
        points: the best first.
        most: points that fit after which no more are forecast; None (default) forecasts all.
        replay: replay the allocator over each step; if False, its memory is counted.
        lead_on: look for faster neighbours of the fastest, as `faster_neighbour` does.
    """
    finalists: list[Finalist] = []
    dropped: list[tuple[ComposedPoint, str]] = []
    for rank, point in enumerate(points):
        if len(finalists) == most:
            break
        try:
            forecast = pricer.forecast(point.strategy, cluster, replay=replay, expandable=False)
        except NOT_TRACED as error:
            dropped.append((point, error.what))
            continue
        if has_headroom(forecast.memory):
            finalists.append(Finalist(point, forecast, rank))
        else:
            dropped.append((point, "does not fit: fragments of its memory are lost"))
    finalists.sort(key=lambda finalist: (finalist.forecast.step_time_s.value, finalist.rank))
    faster = faster_neighbour(finalists[0].forecast, pricer, cluster, replay=replay) if finalists and lead_on else None
    return Finals(tuple(finalists), tuple(dropped), faster)


def faster_neighbour(
    best: Forecast, pricer: StepPricer, cluster: Cluster, *, pinned: Collection[str] = (), replay: bool = True
) -> Forecast | None:
    """The strategy that leads on from neighbour to faster neighbour, as long as there is one that fits; None without any.

    Arguments:
        pinned: fields of the strategy that stay as they are.
        replay: as for `verified`.
    """
    reached = None
    for _ in range(_MOST_STEPS):
        following = _fastest_neighbour(reached or best, pricer, cluster, pinned=pinned, replay=replay)
        if following is None:
            break
        reached = following
    return reached


def _fastest_neighbour(
    best: Forecast, pricer: StepPricer, cluster: Cluster, *, pinned: Collection[str], replay: bool
) -> Forecast | None:
    """The fastest neighbour of a strategy that fits, if it is faster."""
    counted = []
    for strategy in neighbours(best.strategy, experts=experts_of(pricer.trace(best.strategy)), pinned=pinned):
        try:
            forecast = pricer.forecast(strategy, cluster, replay=False)
        except NOT_TRACED:
            continue
        if forecast.step_time_s.value < best.step_time_s.value and has_headroom(forecast.memory):
            counted.append(forecast)
    for forecast in sorted(counted, key=lambda one: one.step_time_s.value):
        whole = pricer.forecast(forecast.strategy, cluster) if replay else forecast
        if has_headroom(whole.memory):
            return whole
    return None
