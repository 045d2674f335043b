"""A step with few of its model's equal blocks, which stand for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.parallel.segments import FIRST, UPDATE, segments_of, select
from gpuwise.trace.trace import Trace

# Parts of a step that ranks of a pipeline have in different numbers: what comes before the blocks, the first block, one that
# stands for all between, the last block, and what comes after the blocks.
SECTIONS = ("before", "first", "middle", "last", "after")
BEFORE_BLOCKS, FIRST_BLOCK, MIDDLE_BLOCK, LAST_BLOCK, AFTER_BLOCKS = range(len(SECTIONS))
_NO_SECTION = -1
_MOST = 5  # blocks that stay: the first and the second, the last, and a neighbour of each of the latter


@dataclass(frozen=True)
class ShallowStep:
    """A step with at most five blocks.

    Attributes:
        trace: the step; the blocks between the third and the last but one are left out.
        blocks: number of blocks of the whole model.
    """

    trace: Trace
    blocks: int

    def sections(self, trace: Trace) -> np.ndarray:
        """The index in SECTIONS of each position of a trace composed from this one, or -1. Shape (positions,)."""
        segments = segments_of(trace)
        section_of = np.full(len(self.trace.header.blocks), _NO_SECTION)
        if len(section_of) > 2:
            section_of[1] = MIDDLE_BLOCK
        section_of[-1] = LAST_BLOCK
        section_of[0] = FIRST_BLOCK
        sections = np.where(segments >= len(section_of), AFTER_BLOCKS, section_of[np.clip(segments, 0, len(section_of) - 1)])
        sections = np.where(segments == FIRST, BEFORE_BLOCKS, sections)
        return np.where(segments == UPDATE, _NO_SECTION, sections)


def shallow_step(trace: Trace) -> ShallowStep:
    """The step with few blocks. Raises UnsupportedError where blocks differ, or where there are none."""
    segments, blocks = segments_of(trace), len(trace.header.blocks)
    if blocks < 1:
        raise UnsupportedError(
            f"{trace.header.job} has no repeated blocks, of which steps are composed.", ["use `gpuwise forecast` for one mesh"]
        )
    if blocks <= _MOST:
        return ShallowStep(trace, blocks)
    _check_equal(trace, segments, blocks)
    chosen = [0, 1, 2, blocks - 2, blocks - 1]
    positions = np.isin(segments, [FIRST, *chosen, blocks, UPDATE])
    of_modules = block_of_modules(trace.modules, trace.header.blocks)
    storages = np.isin(of_modules[trace.storages.module], [-1, *chosen])
    few = select(trace, positions, storages)
    paths = tuple(trace.header.blocks[number] for number in chosen)
    return ShallowStep(replace(few, header=replace(few.header, blocks=paths)), blocks)


def _check_equal(trace: Trace, segments: np.ndarray, blocks: int) -> None:
    """Raises UnsupportedError where a block between the first and the last runs other operations than the second one."""
    sequence = trace.sequence
    inside = np.flatnonzero((segments > 0) & (segments < blocks - 1))
    order = inside[np.argsort(segments[inside], kind="stable")]
    rows = np.column_stack([sequence.operation[order], sequence.phase[order], sequence.micro_step[order]])
    counts = np.bincount(segments[inside], minlength=blocks)[1 : blocks - 1]
    if (counts != counts[0]).any() or (rows.reshape(blocks - 2, -1) != rows.reshape(blocks - 2, -1)[0]).any():
        raise UnsupportedError(
            f"the blocks of {trace.header.job} differ: a few do not stand for all.", ["use `gpuwise forecast` for one mesh"]
        )
