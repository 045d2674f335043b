"""Bytes on one device: the trace's own live bytes, and by name what the trace cannot see."""

from __future__ import annotations

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.types import Chip
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.trace import KINDS, Trace

SEGMENT_BYTES = 2 * 2**20  # the allocator asks the driver for multiples of this (c10/cuda/CUDACachingAllocator.cpp)


def blas_workspace_bytes(trace: Trace, chip: Chip, parameters: Parameters) -> int:
    """cuBLAS keeps one workspace for each thread that calls it: the main one, and autograd's when there is a backward."""
    if family(chip) != "gpu" or not (trace.operations.kind == KINDS.index("gemm")).any():
        return 0
    major = (chip.compute_capability or (0, 0))[0]
    one = parameters.blas_workspace_sm90_bytes if major >= 9 else parameters.blas_workspace_bytes
    return one * (2 if trace.header.strategy.mode == "train" else 1)


def memory_forecast(
    trace: Trace, chip: Chip, *, devices: int, capacity_bytes: int | None, parameters: Parameters
) -> MemoryForecast:
    """Peak bytes of one device. capacity_bytes: None takes the chip's own usable memory."""
    live = live_bytes(trace)
    workspace = blas_workspace_bytes(trace, chip, parameters)
    by_category = {**live.by_category, "temporary": live.by_category.get("temporary", 0) + workspace}
    allocated = live.peak_bytes + workspace
    if family(chip) == "cpu":
        return MemoryForecast(allocated, allocated, allocated, capacity_bytes, by_category)
    # Blocks that come and go with the layers fragment; parameters, gradients and optimizer state lie packed.
    moving = live.by_category.get("activation", 0) + live.by_category.get("temporary", 0)
    reserved = int(allocated + moving * (parameters.reserved_per_moving_byte - 1))
    reserved = -(-reserved // SEGMENT_BYTES) * SEGMENT_BYTES
    outside = _context_bytes(chip, parameters) + (parameters.communicator_bytes if devices > 1 else 0)
    capacity = chip.usable_memory_bytes if capacity_bytes is None else capacity_bytes
    return MemoryForecast(allocated, reserved, reserved + outside, capacity, by_category)


def _context_bytes(chip: Chip, parameters: Parameters) -> int:
    """By the chip's id, else by its family (the driver's context grows with the code loaded and the SM count)."""
    return parameters.context_bytes.get(chip.id, parameters.context_bytes[family(chip)])
