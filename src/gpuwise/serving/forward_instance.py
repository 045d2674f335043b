"""ForwardInstance: a model without a cache on a machine, and the batches that serve most there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.serving.bounds import SLACK, STRICT
from gpuwise.serving.group_server import scaled_groups
from gpuwise.serving.instance import LoadShape, steady
from gpuwise.serving.line import serve_line
from gpuwise.serving.padded import PaddedTimes
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.saturation import Limits, saturation_rate
from gpuwise.serving.served import Served
from gpuwise.serving.windowed import NO_COSTS, ServerCosts, WindowPolicy

CLOSE = 0.03  # of the highest rate: a smaller batch that serves as much takes less memory; other seeds move a rate by as much


@dataclass(frozen=True)
class BatchedPass:
    """How the servers of a machine run forward passes.

    Attributes:
        precision: number formats of the arithmetic.
        batch: most samples of a pass.
        window_s: how long an idle server waits for a batch to fill.
        seconds: of a pass of a full batch.
        memory_bytes: bytes on a device during it.
        why: what takes most of it.
        servers: processes of a device that run passes at once; 1 by default.
        threads: of each, as many as its share of the cores; 0 (default) where it has all of them.
    """

    precision: str
    batch: int
    window_s: float
    seconds: Interval
    memory_bytes: int
    why: str
    servers: int = 1
    threads: int = 0


@dataclass(frozen=True)
class ForwardInstance:
    """A machine with servers of forward passes on each of its devices.

    Attributes:
        times: of the passes of one device, of samples that are alike or of different lengths.
        policy: how each server forms batches.
        copies: devices, each of which serves an equal share of the requests; 1 by default.
        costs: what a server adds to passes; nothing by default.
        servers: of each device, which take from one line; 1 by default. `times` are those of a pass while all of them run.
    """

    times: ForwardTimes | PaddedTimes
    policy: WindowPolicy
    copies: int = 1
    costs: ServerCosts = NO_COSTS
    servers: int = 1

    @property
    def cache_tokens(self) -> int:
        """There is no cache."""
        return 0

    @property
    def first_token_spread(self) -> tuple[float, float]:
        """An answer is one pass, so nothing beside its spread."""
        return 1.0, 1.0

    @property
    def capacity(self) -> float:
        """Requests a second that end while others always wait: full batches, one after the other."""
        seconds = self.costs.mean_jitter * self.times.pass_s(self.policy.batch) + self.costs.between_s
        return self.copies * self.servers * self.policy.batch / seconds

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        """What one device makes of its share of a load, where every pass takes `factor` times its forecast. A share arrives as
        the load does, as many times slower as there are devices: of a Poisson load it is a Poisson load, too."""
        share = replace(load, arrival_s=load.arrival_s * self.copies)
        group_s, costs = scaled_groups(self.times.group_s(share), factor), self.costs.scaled(factor)
        buckets = self.times.bucket_of(share)
        return serve_line(share, group_s, self.policy, servers=self.servers, bucket_of=buckets, costs=costs)

    def outcomes(self, load: Requests) -> tuple[Served, Served, Served]:
        """The outcome of a load as forecast, and with passes as much faster and slower as their spread says. Requests that met
        a line which was still filling up are left out."""
        as_forecast, fast, slow = (steady(self.served(load, factor=factor)) for factor in (1.0, *self.times.spread))
        return as_forecast, fast, slow

    def alone(self, loads: LoadShape) -> Served:
        """The outcome of the mean request with nobody else there. It waits for the window."""
        tokens = np.full(1, max(1, round(loads.lengths.input_tokens)))
        return self.served(requests(np.zeros(1), tokens, np.ones(1, np.int64)))

    def holds(self, loads: LoadShape, limits: Limits, rate_per_s: float) -> bool:
        """Whether the limits hold at a rate."""
        return limits.hold(steady(self.served(loads.at(rate_per_s))))

    def serves(self, loads: LoadShape, limits: Limits, rate_per_s: float) -> bool:
        """Whether the highest rate within the limits is at least as high as a given one."""
        return self.capacity >= rate_per_s and self.holds(loads, limits, rate_per_s)

    def saturation_rate(self, loads: LoadShape, limits: Limits) -> float:
        """The highest rate within the limits, in requests a second, at most the capacity; 0.0 where they hold at none."""
        capacity = self.capacity
        return saturation_rate(lambda rate: steady(self.served(loads.at(rate))), limits, start=capacity, highest=capacity)


def best_batches(instances: Sequence[ForwardInstance], loads: LoadShape, limits: Limits) -> tuple[ForwardInstance, float]:
    """The instance that serves most within the limits, and its saturation rate; of those within CLOSE the one with the fewest
    servers and the smallest batch.

    A batch whose capacity is below what another serves is not simulated, and one that does not hold at that rate not to the
    end. Passes of half the limit go first: a request mostly waits for one and runs in another.

    instances: at least one; of one machine, with different batches and servers.
    """

    def likely(each: ForwardInstance) -> tuple[bool, float]:
        return each.times.pass_s(each.policy.batch) > limits.latency_s / 2, -each.capacity

    def serves(each: ForwardInstance, rate_per_s: float) -> bool:
        return each.capacity >= rate_per_s and each.holds(loads, limits, rate_per_s)

    best, highest = instances[0], 0.0
    for each in sorted(instances, key=likely):
        if not highest or serves(each, (1 + CLOSE / 2) * highest):
            rate = each.saturation_rate(loads, limits)
            best, highest = (each, rate) if rate > highest else (best, highest)
    nearly = (1 - CLOSE / 2) * highest
    for each in sorted(instances, key=_size):
        if highest and _size(each) < _size(best) and serves(each, nearly):
            return each, max(nearly, each.saturation_rate(loads, limits))
    return best, highest


def _size(instance: ForwardInstance) -> tuple[int, int]:
    return instance.servers, instance.policy.batch


def rate_bound(times: ForwardTimes | PaddedTimes, limits: Limits) -> float:
    """Requests a second of one device that no batch exceeds within the limits; 0.0 where a pass of one sample is too slow.

    Whoever runs in a pass that is longer than the limit is beyond it, so nearly all requests run in passes that are not.
    Between two numbers of samples that are priced a pass is linear, so the samples a second of a pass are highest at one of
    them, or where it takes as long as the limit. Samples of different lengths have the bound of full batches without a limit.
    """
    if isinstance(times, PaddedTimes):
        return max(size / times.pass_s(size) for size in times.sizes)
    limit_s = pass_limit_s(limits)
    sizes = sorted(times.passes)
    if times.pass_s(sizes[0]) > limit_s:
        return 0.0
    rates = [size / times.pass_s(size) for size in sizes if times.pass_s(size) <= limit_s]
    for size, larger in pairwise(sizes):
        low_s, high_s = times.pass_s(size), times.pass_s(larger)
        if min(low_s, high_s) < limit_s < max(low_s, high_s):
            samples = size + (larger - size) * (limit_s - low_s) / (high_s - low_s)
            rates.append(samples / limit_s)
    return max(rates) * (SLACK if np.isfinite(limit_s) else 1.0)


def pass_limit_s(limits: Limits) -> float:
    """Seconds within which nearly all passes must be, infinite where enough requests may run in longer ones."""
    return limits.latency_s if limits.share >= STRICT else np.inf
