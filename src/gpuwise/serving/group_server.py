"""CheckedServer: what users see of a server on this machine, and the highest rate it serves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol, Self

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.pass_times import PassTimes
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.profile import PassProfile, corrected_groups, corrected_iterations
from gpuwise.serving.requests import Requests
from gpuwise.serving.saturation import Limits, saturation_rate
from gpuwise.serving.served import Served, capacity_of
from gpuwise.serving.windowed import NO_COSTS, GroupTime, Seconds, ServerCosts, WindowPolicy, serve_groups

COUNT = 1000  # requests of the loads that search a rate


class SpreadTimes(Protocol):
    """Times of passes of any kind."""

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high of measured over forecast times of passes."""
        ...


class SpreadIterations(SpreadTimes, Protocol):
    """Times of iterations."""

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float: ...


class CheckedServer(ABC):
    """A server on one device, simulated.

    Attributes:
        times: of its passes.
        policy: how it forms batches.
    """

    times: SpreadTimes
    policy: WindowPolicy | BatchingPolicy

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high of measured over forecast times of passes."""
        return self.times.spread

    @property
    def settings(self) -> dict[str, object]:
        """How it forms batches."""
        return asdict(self.policy)

    @property
    @abstractmethod
    def unlimited(self) -> CheckedServer:
        """The same server, which turns nobody away."""

    @abstractmethod
    def timed(self, profile: PassProfile) -> CheckedServer:
        """The same server, whose passes take what was timed."""

    @abstractmethod
    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        """The outcome of a load, where every pass takes `factor` times its forecast."""

    def outcomes(self, load: Requests) -> tuple[Served, Served, Served]:
        """The outcome of a load as forecast, and with passes as much faster and slower as their spread says."""
        low, high = self.spread
        return self.served(load), self.served(load, factor=low), self.served(load, factor=high)

    def capacity(self, loads: LoadShape) -> Interval:
        """Requests a second that are served while others always wait."""
        return self._with_spread(lambda factor: self._capacity(loads, factor))

    def saturation_rate(self, loads: LoadShape, limits: Limits) -> Interval:
        """The highest rate within the limits, in requests a second, at most the capacity; 0.0 where they hold at none."""
        return self._with_spread(lambda factor: self._saturation_rate(loads, limits, factor))

    def _with_spread(self, rate_at: Callable[[float], float]) -> Interval:
        low, high = self.spread
        return Interval(rate_at(1.0), rate_at(high), rate_at(low))

    def _capacity(self, loads: LoadShape, factor: float) -> float:
        return capacity_of(self.unlimited.served(loads.at(1.0, count=COUNT).all_at_once(), factor=factor))

    def _saturation_rate(self, loads: LoadShape, limits: Limits, factor: float) -> float:
        capacity = self._capacity(loads, factor)
        if not any(np.isfinite([limits.ttft_s, limits.tpot_s, limits.latency_s])):
            return capacity
        return saturation_rate(
            lambda rate: self.served(loads.at(rate, count=COUNT), factor=factor), limits, start=capacity, highest=capacity
        )


@dataclass(frozen=True)
class GroupServer(CheckedServer):
    """A server that runs whole requests together.

    Attributes:
        costs: what it adds to passes; by default nothing.
    """

    times: PassTimes
    policy: WindowPolicy
    costs: ServerCosts = NO_COSTS

    @property
    def unlimited(self) -> GroupServer:
        return replace(self, policy=WindowPolicy(self.policy.batch))

    def timed(self, profile: PassProfile) -> GroupServer:
        """The same server, with what was timed of it."""
        return replace(self, times=corrected_groups(self.times, profile), costs=profile.costs)

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        return serve_groups(load, scaled_groups(self.times.group_s(load), factor), self.policy, costs=self.costs.scaled(factor))


@dataclass(frozen=True)
class IterationServer(CheckedServer):
    """A server whose requests join and leave the batch at every iteration."""

    times: SpreadIterations
    policy: BatchingPolicy

    @property
    def unlimited(self) -> Self:
        return replace(self, policy=replace(self.policy, queue=None))

    def timed(self, profile: PassProfile) -> Self:
        """The same server, with what was timed of it. Its iterations carry all that it adds."""
        return replace(self, times=corrected_iterations(self.times, profile))

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        return Instance(self.times, self.policy, self.spread).served(load, factor=factor)


@dataclass(frozen=True)
class PackedServer(IterationServer):
    """Transformers' continuous batching."""


def scaled_groups(group_s: GroupTime, factor: float) -> GroupTime:
    """The same groups, which take `factor` times as long."""
    if factor == 1:
        return group_s

    def scaled(group: Sequence[int]) -> tuple[Seconds, Seconds]:
        first, end = group_s(group)
        return factor * first, factor * end

    return scaled
