"""The segments of a step: what comes before its blocks, each block, and what comes after; and a choice among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.tables import BEFORE, CATEGORIES, PHASES
from gpuwise.trace.trace import Trace

FIRST = -1  # the segment before the blocks; the one after them has their number
UPDATE = -2  # of positions of the optimizer
FORWARD = PHASES.index("forward")
_GRADIENT = CATEGORIES.index("gradient")


def segments_of(trace: Trace) -> np.ndarray:
    """The segment of each position: FIRST, the number of its block, the number of blocks, or UPDATE. Shape (positions,).

    What runs outside of modules between two blocks, such as the sum of two gradients, belongs to the block before it.
    """
    return trace.once("segments", lambda: _segments(trace))


def _segments(trace: Trace) -> np.ndarray:
    sequence = trace.sequence
    block = block_of_modules(trace.modules, trace.header.blocks)[sequence.module]
    last = len(trace.header.blocks)
    segment = np.full(len(sequence), UPDATE, dtype=np.int64)
    backward = ~np.isin(sequence.phase, [FORWARD, PHASES.index("optimizer")])
    for micro_step in (0, 1):
        of_batch = sequence.micro_step == micro_step
        forward = np.flatnonzero(of_batch & (sequence.phase == FORWARD))
        segment[forward] = _filled(block[forward], FIRST, last)
        positions = np.flatnonzero(of_batch & backward)
        filled = _filled(block[positions], last, FIRST)
        inside = np.flatnonzero(block[positions] >= 0)
        if len(inside):  # gradients of the first block are kept, or added, right behind it
            named = np.flatnonzero(sequence.module[positions[inside[-1] + 1 :]] != 0)
            end = inside[-1] + 1 + (named[0] if len(named) else len(positions))
            filled[inside[-1] + 1 : end] = filled[inside[-1]]
        segment[positions] = filled
    return segment


def _filled(block: np.ndarray, before: int, after: int) -> np.ndarray:
    """Blocks of consecutive positions, where those in no block are of the block before them."""
    inside = np.flatnonzero(block >= 0)
    if not len(inside):
        return np.full(len(block), before, dtype=np.int64)
    latest = np.maximum.accumulate(np.where(block >= 0, np.arange(len(block)), -1))
    filled = np.where(latest >= 0, block[np.maximum(latest, 0)], before)
    filled[inside[-1] + 1 :] = after
    return filled


def select(trace: Trace, positions: np.ndarray, storages: np.ndarray) -> Trace:
    """The trace of some positions and storages, masks of shapes (positions,) and (storages,).

    A storage is alive from the first of the positions at which it was to the last; if it is at none, it is dropped.
    """
    sequence, old = trace.sequence, trace.storages
    length, count = len(sequence), int(positions.sum())
    before = np.concatenate([[0], np.cumsum(positions)])  # positions that stay, before each
    born = np.where(old.born < 0, BEFORE, before[np.maximum(old.born, 0)])
    died = np.where(old.died >= length, count, before[np.minimum(old.died, length - 1) + 1] - 1)
    rows = np.flatnonzero(storages & (died >= np.maximum(born, 0)) & (born < count))
    shapes = trace.header.gradient_shapes
    if shapes:
        kept = np.isin(np.flatnonzero(old.category == _GRADIENT), rows)
        shapes = tuple(shape for shape, keep in zip(shapes, kept.tolist(), strict=True) if keep)
    columns = (getattr(sequence, name)[positions] for name in ("operation", "module", "phase", "micro_step", "stream"))
    return replace(
        trace,
        header=replace(trace.header, gradient_shapes=shapes),
        sequence=type(sequence)(*columns),
        storages=type(old)(
            old.size_bytes[rows],
            old.category[rows],
            old.module[rows],
            born[rows].astype(old.born.dtype),
            died[rows].astype(old.died.dtype),
            old.stream[rows],
        ),
    )
