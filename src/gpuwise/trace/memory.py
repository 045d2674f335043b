"""Live bytes over a Trace: the peak, its position and its parts. Counted, not estimated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.trace.tables import BEFORE, CATEGORIES
from gpuwise.trace.trace import Trace

ALLOCATION_GRANULE_BYTES = 512  # PyTorch rounds each request up to this (c10/cuda/CUDACachingAllocator.cpp)
_KEPT = (CATEGORIES.index("parameter"), CATEGORIES.index("optimizer_state"))


@dataclass(frozen=True)
class Live:
    """Live bytes at each position.

    Attributes:
        allocated_bytes: live bytes at each position, shape (positions,).
        peak_position: argmax of allocated_bytes.
        peak_bytes: maximum of allocated_bytes.
        by_category: bytes at the peak, by names of CATEGORIES; they sum exactly to peak_bytes.
        persistent_bytes: bytes of the storages that live through the whole step.
    """

    allocated_bytes: np.ndarray
    peak_position: int
    peak_bytes: int
    by_category: dict[str, int]
    persistent_bytes: int


def rounded(size_bytes: np.ndarray, granule_bytes: int = ALLOCATION_GRANULE_BYTES) -> np.ndarray:
    """Sizes rounded up as the allocator does."""
    return -(-size_bytes // granule_bytes) * granule_bytes


def alive_bytes(trace: Trace, *, granule_bytes: int = ALLOCATION_GRANULE_BYTES) -> np.ndarray:
    """Live bytes at each position, shape (categories, positions); zero if the second micro-batch does not run.

    Memory that a kernel allocates and frees inside one call counts as temporary.

    Arguments:
        granule_bytes: sizes are rounded up to a multiple of this; 1 rounds nothing (a CPU's allocator).
    """
    sequence, storages = trace.sequence, trace.storages
    length = len(sequence)
    runs = np.ones(length + 1, dtype=bool)
    if trace.accumulation == 1:
        runs[:length] = sequence.micro_step != 1
    exists = (storages.born < 0) | runs[np.maximum(storages.born, 0)]
    size, category = rounded(storages.size_bytes[exists], granule_bytes), storages.category[exists]
    row = category.astype(np.int64) * (length + 2)
    delta = np.zeros(len(CATEGORIES) * (length + 2), dtype=np.int64)
    np.add.at(delta, row + np.maximum(storages.born[exists], 0), size)
    np.add.at(delta, row + storages.died[exists] + 1, -size)
    alive: np.ndarray = np.cumsum(delta.reshape(len(CATEGORIES), -1), axis=1)[:, :length]
    inside = trace.operations.column("workspace_bytes")[sequence.operation]
    alive[CATEGORIES.index("temporary")] += rounded(inside, granule_bytes)
    if not runs.all():
        alive[:, ~runs[:length]] = 0
    return alive


def live_bytes(trace: Trace, *, granule_bytes: int = ALLOCATION_GRANULE_BYTES) -> Live:
    """The live bytes of a step, and their peak. Arguments as for alive_bytes."""
    alive, storages = alive_bytes(trace, granule_bytes=granule_bytes), trace.storages
    total = alive.sum(axis=0)
    peak = int(total.argmax()) if len(total) else 0
    at_peak = alive[:, peak].tolist() if len(total) else [0] * len(CATEGORIES)
    stays = (storages.born < 0) & (storages.died >= len(total))
    return Live(
        allocated_bytes=total,
        peak_position=peak,
        peak_bytes=sum(at_peak),
        by_category=dict(zip(CATEGORIES, at_peak, strict=True)),
        persistent_bytes=int(rounded(storages.size_bytes[stays], granule_bytes).sum()),
    )


def kept_bytes(trace: Trace) -> int:
    """Bytes of parameters and optimizer state at the beginning of a step: samples of any length need them."""
    storages = trace.storages
    rows = np.isin(storages.category, _KEPT) & (storages.born == BEFORE)
    return int(storages.size_bytes[rows].sum())
