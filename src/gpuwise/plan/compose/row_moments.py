"""The moments of steps at which ranks may hold most, as arrays over pipelines."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from gpuwise.plan.compose.moments import Moment, moments
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, FIRST_BLOCK, LAST_BLOCK, SECTIONS

_BLOCKS = slice(FIRST_BLOCK, LAST_BLOCK + 1)


class MomentRow(NamedTuple):
    """Moments of each row; see gpuwise.plan.compose.moments.Moment. Shapes are (slots, ranks, rows).

    Attributes:
        section: of SECTIONS.
        has_before, has_after: 1 where something runs before it, and behind it, else 0.
        blocks_before, blocks_after: blocks that do.
        edge_after: 1 where what comes after the blocks runs behind it, else 0.
        own: 1 in a block, else 0.
    """

    section: np.ndarray
    has_before: np.ndarray
    has_after: np.ndarray
    blocks_before: np.ndarray
    blocks_after: np.ndarray
    edge_after: np.ndarray
    own: np.ndarray


class MomentRows:
    """The moments of the ranks of several pipelines.

    Arguments:
        weights: shape (pipelines, ranks, sections).

    Attributes:
        moments: a row for each pipeline.
        before, after: how many of each section run before a moment and behind it. Shape (slots, sections, ranks, pipelines).
    """

    SLOTS: ClassVar[int] = 6  # moments of a rank at most; of fewer, the first stands for those that it has not

    def __init__(self, weights: np.ndarray):
        pipes, ranks = weights.shape[:2]
        section = np.zeros((self.SLOTS, ranks, pipes), dtype=np.int64)
        shape = (self.SLOTS, len(SECTIONS), ranks, pipes)
        self.before, self.after = np.zeros(shape), np.zeros(shape)
        for pipe, rank in np.ndindex(pipes, ranks):
            some = _in_forward(tuple(weights[pipe, rank].tolist()))
            for slot, moment in enumerate([*[some[0]] * (self.SLOTS - len(some)), *some]):  # the last is in the last slot
                section[slot, rank, pipe] = moment.section
                self.before[slot, :, rank, pipe], self.after[slot, :, rank, pipe] = moment.before, moment.after
        self.moments = MomentRow(
            section,
            np.asarray(self.before.sum(axis=1) > 0).astype(np.int64),
            np.asarray(self.after.sum(axis=1) > 0).astype(np.int64),
            self.before[:, _BLOCKS].sum(axis=1),
            self.after[:, _BLOCKS].sum(axis=1),
            self.after[:, AFTER_BLOCKS],
            ((section >= FIRST_BLOCK) & (section <= LAST_BLOCK)).astype(np.float64),
        )

    def chosen(self, pipe: np.ndarray, *, ranks: int, slots: slice) -> MomentRow:
        """The moments of some rows, of the first of the ranks that differ."""
        return MomentRow(*(part[slots, :ranks][..., pipe] for part in self.moments))


@lru_cache(maxsize=4096)
def _in_forward(weights: tuple[float, ...]) -> tuple[Moment, ...]:
    """The moments of a rank, of which forward and backward have the same. weights: of its sections."""
    return tuple(moment for moment in moments(np.array(weights)) if not moment.turn)
