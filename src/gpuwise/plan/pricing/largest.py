"""The largest micro-batch that fits a cluster: counted bytes give a bound, then a replay of the allocator decides.

There are two searches, because they answer two questions and their answers differ:

- `largest_of` chooses the strategy to train with. Its few candidates make the same global batch. The chosen one leaves
  headroom on the device, or fits at all where none does. Each candidate is tried, the largest first.
- `largest_micro_batch` reports the limit of a device. Every whole number up to 65,536 is a candidate, and the last one whose
  allocations all succeed counts, without headroom. Too many to try each: it searches near the bound, then by halves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.errors import InputError
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import NOT_TRACED, RECORDED_BATCHES
from gpuwise.strategy import Strategy
from gpuwise.trace.family import MOST_COUNTED

MOST_MICRO_BATCH = 2**16
# The share of a device that tensors can take despite fragmentation. On a T4 tensors were at worst 0.67 of the reserved
# bytes (docs/accuracy-memory.md, a step with eager attention); part of the rest can be returned to the driver.
SURE_SHARE = 0.65


def largest_of(
    pricer: StepPricer,
    ladder: Sequence[Strategy],
    cluster: Cluster,
    *,
    memory: Callable[[Strategy, Cluster], MemoryForecast],
) -> Strategy | None:
    """The last strategy of a ladder that leaves headroom on a cluster, else the smallest that fits; None if none fits.

    Arguments:
        ladder: strategies with the same global batch, ascending in micro-batch.
        memory: `pricer.counted` or `pricer.replayed`.
    """
    end = len(ladder)
    if cluster.capacity_bytes is not None and pricer.peak_bytes(ladder[-1]) > cluster.capacity_bytes:
        end = bisect_right(ladder, cluster.capacity_bytes, key=pricer.peak_bytes)
    tight = None
    for strategy in reversed(ladder[:end]):
        needed = memory(strategy, cluster)
        if has_headroom(needed):
            return strategy
        if needed.fits:
            tight = strategy
    return tight


def one_sample_fits(pricer: StepPricer, strategy: Strategy, cluster: Cluster) -> bool:
    """Whether one sample fits. False if the strategy cannot be traced."""
    return step_fits(pricer, strategy.but(micro_batch=1), cluster)


def step_fits(pricer: StepPricer, strategy: Strategy, cluster: Cluster) -> bool:
    """Whether a step fits. False if the strategy cannot be traced.

    The allocator is not replayed if the needed bytes are at most SURE_SHARE of the device.
    """
    capacity = cluster.capacity_bytes
    try:
        if capacity is None or pricer.needed_bytes(strategy, cluster) <= SURE_SHARE * capacity:
            return True
        return pricer.fits(strategy, cluster)
    except NOT_TRACED:
        return False


def largest_counted(pricer: StepPricer, strategy: Strategy, cluster: Cluster, *, most: int = MOST_MICRO_BATCH) -> int | None:
    """The largest micro-batch, at most `most`, whose tensors fit a cluster; None if not even one sample fits.

    No allocator can fit more.

    Live bytes at each position are linear in the batch, so their peak is convex: the line through two small batches lies
    below it, and where that line meets the capacity is an upper bound.
    """
    capacity = cluster.capacity_bytes
    if capacity is None:
        return most

    def needed(micro_batch: int) -> int:
        try:
            return pricer.needed_bytes(strategy.but(micro_batch=micro_batch), cluster)
        except InputError:  # the count would overflow
            return MOST_COUNTED

    one = pricer.needed_bytes(strategy.but(micro_batch=1), cluster)
    if one > capacity:
        return None
    if most == 1:
        return 1
    if not pricer.traces.is_of_any_batch(strategy):
        return max(each for each in recorded_batches(pricer, strategy, most=most) if needed(each) <= capacity)
    slope = max(1, needed(2) - one)
    low, high = 1, min(most, 2 + (capacity - one) // slope)
    at_low, at_high = one, needed(high)
    if at_high <= capacity:
        return high
    while high - low > 1:
        line = low + (capacity - at_low) * (high - low) // (at_high - at_low)  # usually the answer, because peaks grow linearly
        for probe in (line, line + 1, (low + high) // 2):
            if low < probe < high:
                at_probe = needed(probe)
                if at_probe <= capacity:
                    low, at_low = probe, at_probe
                else:
                    high, at_high = probe, at_probe
    return low


def recorded_batches(pricer: StepPricer, strategy: Strategy, *, most: int) -> list[int]:
    """The micro-batches, at most `most`, that are tried of a program that changes with the batch."""
    return [each for each in RECORDED_BATCHES if each <= most and pricer.traces.covers(strategy, each)]


def largest_micro_batch(
    pricer: StepPricer,
    strategy: Strategy,
    cluster: Cluster,
    *,
    most: int = MOST_MICRO_BATCH,
    expandable: bool = False,
) -> int | None:
    """The largest micro-batch, at most `most`, that fits a cluster; None if not even one sample fits."""
    high = largest_counted(pricer, strategy, cluster, most=most)
    if high is None:
        return None
    if not pricer.traces.is_of_any_batch(strategy):
        each_of = [strategy.but(micro_batch=each) for each in recorded_batches(pricer, strategy, most=high)]
        return max((each.micro_batch for each in each_of if pricer.fits(each, cluster, expandable=expandable)), default=None)

    def fits(micro_batch: int) -> bool:
        return pricer.fits(strategy.but(micro_batch=micro_batch), cluster, expandable=expandable)

    if fits(high):
        return high
    low, step = 0, 1  # little is lost to fragmentation, so start near the bound
    while not low and high > 1:
        probe = max(1, high - step)
        if fits(probe):
            low = probe
        else:
            high, step = probe, 2 * step
    return _last(fits, low, high - 1) if low else None


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from low to high that fits; low does."""
    high += 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
