"""The largest micro-batch that a device holds: bounds by counted bytes, then the allocator decides."""

from __future__ import annotations

from collections.abc import Callable

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.cost.memory.allocator import replay
from gpuwise.cost.memory.device import blas_workspace_bytes, memory_forecast
from gpuwise.cost.memory.events import step_events
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import family
from gpuwise.errors import InputError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.plan.traces import Traces
from gpuwise.strategy import Strategy
from gpuwise.trace.family import MOST_COUNTED

MOST_MICRO_BATCH = 2**16
# The share of a device that tensors can take whatever their fragments do. On a T4 tensors were 0.67 of what was reserved at
# worst (docs/accuracy-memory.md, a step with eager attention); part of the rest can be given back.
SURE_SHARE = 0.65


def needed_bytes(traces: Traces, strategy: Strategy, cluster: Cluster) -> int:
    """What a device must have at the very least: tensors, and what stands outside the allocator."""
    tensors, outside = _counted(traces, strategy, cluster)
    return tensors + outside


def _counted(traces: Traces, strategy: Strategy, cluster: Cluster) -> tuple[int, int]:
    key = (strategy, cluster.chip.id, cluster.devices)
    if key not in traces.counted:
        memory = memory_forecast(traces.make(strategy)[0], cluster, parameters=parameters(), replay=False)
        traces.counted[key] = memory.peak_allocated_bytes, memory.device_bytes - memory.peak_reserved_bytes
    return traces.counted[key]


def serves(traces: Traces, strategy: Strategy, cluster: Cluster, *, expandable: bool = False) -> bool:
    """Whether the device serves every request of a step, as its allocator decides it; a CPU by counted bytes.

    Arguments:
        expandable: the allocator's segments are (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
    """
    capacity = cluster.capacity_bytes
    if capacity is None or family(cluster.chip) != "gpu":
        return capacity is None or needed_bytes(traces, strategy, cluster) <= capacity
    tensors, outside = _counted(traces, strategy, cluster)
    if tensors + outside > capacity:
        return False
    key = (strategy, cluster, expandable)
    if key not in traces.served:
        traces.served[key] = _replayed(traces, strategy, cluster.chip, capacity - outside, expandable=expandable)
    return traces.served[key]


def _replayed(traces: Traces, strategy: Strategy, chip: Chip, limit_bytes: int, *, expandable: bool) -> bool:
    """Whether the allocator serves a step from so many bytes; at once where it is known to reserve no more."""
    trace = traces.make(strategy)[0]
    workspace = blas_workspace_bytes(trace, chip, parameters())
    key = (strategy, workspace, expandable)
    if traces.reserved.get(key, limit_bytes + 1) <= limit_bytes:
        return True
    events = step_events(trace, blas_workspace_bytes=workspace)
    run = replay(events.size_bytes.tolist(), events.order.tolist(), limit_bytes=limit_bytes, expandable=expandable)
    if run.out_of_memory is None and not run.cache_releases:
        traces.reserved[key] = run.peak_reserved_bytes
    return run.out_of_memory is None


def remember(traces: Traces, strategy: Strategy, chip: Chip, memory: MemoryForecast) -> None:
    """Takes from a forecast what a step reserves that never has to give cached blocks back."""
    if not memory.counted_only and not memory.cache_releases:
        workspace = blas_workspace_bytes(traces.make(strategy)[0], chip, parameters())
        traces.reserved[strategy, workspace, False] = memory.peak_reserved_bytes


def surely_serves(traces: Traces, strategy: Strategy, cluster: Cluster) -> bool:
    """The same, without a replay where tensors take a share that no fragments have been seen to exceed."""
    capacity = cluster.capacity_bytes
    if capacity is None or needed_bytes(traces, strategy, cluster) <= SURE_SHARE * capacity:
        return True
    return serves(traces, strategy, cluster)


def largest_counted(traces: Traces, strategy: Strategy, cluster: Cluster, *, most: int = MOST_MICRO_BATCH) -> int | None:
    """The largest micro-batch whose tensors fit a cluster, at most `most`: no allocator can fit more. None: not even one.

    Live bytes at each position are linear in the batch, so their peak is convex: the line through two small batches lies
    below it, and where that line meets the capacity is an upper bound.
    """
    capacity = cluster.capacity_bytes
    if capacity is None:
        return most

    def needed(micro_batch: int) -> int:
        try:
            return needed_bytes(traces, strategy.but(micro_batch=micro_batch), cluster)
        except InputError:  # more than can be counted
            return MOST_COUNTED

    one = needed_bytes(traces, strategy.but(micro_batch=1), cluster)
    if one > capacity:
        return None
    if most == 1 or not traces.family(strategy).covers({"micro_batch": 2}):
        return 1  # the program changes with the batch: it was recorded for one sample alone
    slope = max(1, needed(2) - one)
    low, high = 1, min(most, 2 + (capacity - one) // slope)
    at_low, at_high = one, needed(high)
    if at_high <= capacity:
        return high
    while high - low > 1:
        line = low + (capacity - at_low) * (high - low) // (at_high - at_low)  # most often the answer: peaks grow straight
        for probe in (line, line + 1, (low + high) // 2):
            if low < probe < high:
                found = needed(probe)
                low, at_low, high, at_high = (probe, found, high, at_high) if found <= capacity else (low, at_low, probe, found)
    return low


def largest_micro_batch(
    traces: Traces, strategy: Strategy, cluster: Cluster, *, most: int = MOST_MICRO_BATCH, expandable: bool = False
) -> int | None:
    """The largest micro-batch that a cluster serves, at most `most`; None where it does not serve one sample."""
    high = largest_counted(traces, strategy, cluster, most=most)
    if high is None:
        return None

    def fits(micro_batch: int) -> bool:
        return serves(traces, strategy.but(micro_batch=micro_batch), cluster, expandable=expandable)

    if fits(high):
        return high
    low, step = 0, 1  # what is lost to fragments is little: look near the bound first
    while not low and high > 1:
        probe = max(1, high - step)
        if fits(probe):
            low = probe
        else:
            high, step = probe, 2 * step
    return _last(fits, low, high - 1) if low else None


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from low to high that fits; low is known to."""
    high += 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
