"""Memory of one device: a replay of the step's allocations, and the named parts that are not in the trace."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.cost.memory.allocator import Replay
from gpuwise.cost.memory.events import CATEGORY_NAMES, WORKSPACE, step_events
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.tables import KINDS
from gpuwise.trace.trace import Trace

SEGMENT_BYTES = 2 * 2**20  # the allocator asks the driver for multiples of this (c10/cuda/CUDACachingAllocator.cpp)
_BIG_BLAS_WORKSPACE = (9, 10, 12)  # major compute capabilities: Hopper and Blackwell


def memory_forecast(
    trace: Trace,
    cluster: Cluster,
    *,
    parameters: Parameters,
    replay: bool = True,
    expandable: bool = True,
) -> MemoryForecast:
    """The peak memory of one device, and whether it fits.

    Arguments:
        replay: replay the allocator over the step (GPUs; some 2 µs an allocation). If False, live bytes are counted and the
            allocator's overhead is estimated, which searches over thousands of steps need.
        expandable: also replay it with expandable segments, which doubles the time.
    """
    chip, capacity = cluster.chip, cluster.capacity_bytes
    outside = outside_bytes(cluster, parameters)
    if family(chip) == "cpu":
        return _on_cpu(trace, capacity)
    if replay and family(chip) == "gpu":
        workspace = blas_workspace_bytes(trace, chip, parameters)
        return _replayed(trace, workspace, outside=outside, capacity=capacity, expandable=expandable)
    return _counted(trace, chip, parameters, outside=outside, capacity=capacity)


def outside_bytes(cluster: Cluster, parameters: Parameters) -> int:
    """Bytes outside the allocator on a device of a cluster: its context, and the buffers of communicators."""
    communicators = parameters.communicator_bytes if cluster.devices > 1 else 0
    return _context_bytes(cluster.chip, parameters) + communicators


def blas_workspace_bytes(trace: Trace, chip: Chip, parameters: Parameters) -> int:
    """Bytes of the cuBLAS workspace of one calling thread; 0 if no operation calls cuBLAS.

    getChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp of PyTorch 2.13. cuBLASLt, which takes a product with
    bias, uses the same workspace there (older versions add 1 MiB).
    """
    if family(chip) != "gpu" or not (trace.operations.kind == KINDS.index("gemm")).any():
        return 0
    major = (chip.compute_capability or (0, 0))[0]
    return parameters.blas_workspace_sm90_bytes if major in _BIG_BLAS_WORKSPACE else parameters.blas_workspace_bytes


def _replayed(trace: Trace, workspace: int, *, outside: int, capacity: int | None, expandable: bool) -> MemoryForecast:
    replays = trace.once(("replays", workspace), lambda: _Replays(trace, workspace))
    events, free = replays.events, replays.free
    run, fits = free, None
    if capacity is not None:
        fits = free.peak_reserved_bytes + outside <= capacity
        if not fits and free.peak_allocated_bytes + outside <= capacity:
            limited = events.replay(limit_bytes=capacity - outside)
            fits = limited.out_of_memory is None
            run = limited if fits else free
    return MemoryForecast(
        peak_allocated_bytes=run.peak_allocated_bytes,
        peak_reserved_bytes=run.peak_reserved_bytes,
        device_bytes=run.peak_reserved_bytes + outside,
        capacity_bytes=capacity,
        by_category=events.by_category(np.array(run.block_bytes), run.peak_event),
        fits=fits,
        peak_reserved_expandable_bytes=replays.expandable.peak_reserved_bytes if expandable else None,
        cache_releases=run.cache_releases,
    )


class _Replays:
    """The step's events and their replay without a memory limit, which is the same for every chip."""

    def __init__(self, trace: Trace, workspace: int) -> None:
        self.events = step_events(trace, blas_workspace_bytes=workspace)
        self.free = self.events.replay()

    @cached_property
    def expandable(self) -> Replay:
        return self.events.replay(expandable=True)


def _counted(trace: Trace, chip: Chip, parameters: Parameters, *, outside: int, capacity: int | None) -> MemoryForecast:
    live = trace.once("live", lambda: live_bytes(trace))
    threads = 2 if trace.header.strategy.mode == "train" else 1
    workspace = threads * blas_workspace_bytes(trace, chip, parameters)
    allocated = live.peak_bytes + workspace
    # Only the short-lived blocks of layers fragment; parameters, gradients and optimizer state are packed.
    moving = live.by_category["activation"] + live.by_category["temporary"] + workspace
    reserved = int(allocated + moving * (parameters.reserved_per_moving_byte - 1))
    reserved = -(-reserved // SEGMENT_BYTES) * SEGMENT_BYTES
    return MemoryForecast(
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        device_bytes=reserved + outside,
        capacity_bytes=capacity,
        by_category={**live.by_category, WORKSPACE: workspace},
        fits=None if capacity is None else reserved + outside <= capacity,
        counted_only=True,
    )


def _on_cpu(trace: Trace, capacity: int | None) -> MemoryForecast:
    """Memory on a CPU: the C library's allocator neither rounds nor caches, and there is no device context."""
    live = trace.once("live on a cpu", lambda: live_bytes(trace, granule_bytes=1))
    return MemoryForecast(
        peak_allocated_bytes=live.peak_bytes,
        peak_reserved_bytes=live.peak_bytes,
        device_bytes=live.peak_bytes,
        capacity_bytes=capacity,
        by_category=dict.fromkeys(CATEGORY_NAMES, 0) | live.by_category,
        fits=None if capacity is None else live.peak_bytes <= capacity,
        counted_only=True,
    )


def _context_bytes(chip: Chip, parameters: Parameters) -> int:
    """Bytes of the device context, by the chip's id, else by its family.

    The driver's context grows with the loaded code and the SM count.
    """
    return parameters.context_bytes.get(chip.id, parameters.context_bytes[family(chip)])
