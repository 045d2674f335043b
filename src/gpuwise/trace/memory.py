"""Live bytes over a Trace: the peak, where it is and what makes it. Counted, never estimated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.trace.trace import CATEGORIES, Trace

ALLOCATION_GRANULE_BYTES = 512  # PyTorch rounds each request up to this (c10/cuda/CUDACachingAllocator.cpp)


@dataclass(frozen=True)
class Live:
    """Bytes alive while each position runs.

    allocated_bytes: shape (positions,); peak_position: its argmax; by_category: bytes at the peak, summing exactly to
    peak_bytes; persistent_bytes: what lives through the whole step.
    """

    allocated_bytes: np.ndarray
    peak_position: int
    peak_bytes: int
    by_category: dict[str, int]
    persistent_bytes: int


def rounded(size_bytes: np.ndarray, granule_bytes: int = ALLOCATION_GRANULE_BYTES) -> np.ndarray:
    """Sizes as the allocator counts them."""
    return -(-size_bytes // granule_bytes) * granule_bytes


def live_bytes(trace: Trace, *, granule_bytes: int = ALLOCATION_GRANULE_BYTES) -> Live:
    """Counts the storages of a trace (the second micro-batch only where accumulation uses it).

    Arguments:
        granule_bytes: what sizes are rounded up to; 1: nothing is rounded (a CPU's allocator).
    """
    sequence, storages = trace.sequence, trace.storages
    length = len(sequence)
    runs = np.ones(length + 1, dtype=bool)
    if trace.accumulation == 1:
        runs[:length] = sequence.micro_step != 1
    alive = (storages.born < 0) | runs[np.maximum(storages.born, 0)]
    born, died = storages.born[alive], storages.died[alive]
    size = rounded(storages.size_bytes[alive], granule_bytes)
    delta = np.zeros(length + 2, dtype=np.int64)
    np.add.at(delta, np.maximum(born, 0), size)
    np.add.at(delta, died + 1, -size)
    live = np.cumsum(delta)[:length]
    workspace = rounded(trace.operations.column("workspace_bytes")[sequence.operation], granule_bytes)
    total = np.where(runs[:length], live + workspace, 0)
    peak = int(total.argmax()) if length else 0
    at_peak = (born <= peak) & (died >= peak)
    categories = np.bincount(storages.category[alive][at_peak], weights=size[at_peak], minlength=len(CATEGORIES))
    by_category = {name: int(value) for name, value in zip(CATEGORIES, categories, strict=True)}
    if length:
        by_category["temporary"] += int(workspace[peak])
    return Live(
        allocated_bytes=total,
        peak_position=peak,
        peak_bytes=int(total[peak]) if length else 0,
        by_category=by_category,
        persistent_bytes=int(size[(born < 0) & (died >= length)].sum()),
    )
