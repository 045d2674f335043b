"""The moments of steps at which ranks may hold most, as arrays over pipelines."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from gpuwise.plan.compose.moments import moments
from gpuwise.plan.compose.shallow import FIRST_BLOCK, LAST_BLOCK, SECTIONS

_BLOCKS = slice(FIRST_BLOCK, LAST_BLOCK + 1)


class MomentRow(NamedTuple):
    """One moment of each row; see gpuwise.plan.compose.moments.Moment. All have shape (ranks, rows), but before and after.

    Attributes:
        section: of SECTIONS.
        before, after: how many of each section run before it and behind it. Shape (ranks, rows, sections).
        has_before, has_after: 1 where there are any, else 0.
        blocks_before, blocks_after: blocks of them.
        own: 1 in a block, else 0.
    """

    section: np.ndarray
    before: np.ndarray
    after: np.ndarray
    has_before: np.ndarray
    has_after: np.ndarray
    blocks_before: np.ndarray
    blocks_after: np.ndarray
    own: np.ndarray


class MomentRows:
    """The moments of the ranks of several pipelines. weights: shape (pipelines, ranks, sections)."""

    SLOTS: ClassVar[int] = 6  # moments of a rank at most; of fewer, the first stands for those that it has not

    def __init__(self, weights: np.ndarray):
        shape = (self.SLOTS, *weights.shape[:2])
        self._section = np.zeros(shape, dtype=np.int64)
        self._before, self._after = np.zeros((*shape, len(SECTIONS))), np.zeros((*shape, len(SECTIONS)))
        for pipe, rank in np.ndindex(*weights.shape[:2]):
            some = [moment for moment in moments(weights[pipe, rank]) if not moment.turn]
            for slot, moment in enumerate([*[some[0]] * (self.SLOTS - len(some)), *some]):  # the last is in the last slot
                self._section[slot, pipe, rank] = moment.section
                self._before[slot, pipe, rank], self._after[slot, pipe, rank] = moment.before, moment.after

    def at(self, slot: int, pipe: np.ndarray, *, ranks: int) -> MomentRow:
        """The moments in a slot. pipe: of each row. ranks: the first of those that differ."""
        section = self._section[slot, pipe, :ranks].T
        before, after = (part[slot, pipe, :ranks].transpose(1, 0, 2) for part in (self._before, self._after))
        return MomentRow(
            section,
            before,
            after,
            (before.sum(axis=-1) > 0).astype(np.int64),
            (after.sum(axis=-1) > 0).astype(np.int64),
            before[..., _BLOCKS].sum(axis=-1),
            after[..., _BLOCKS].sum(axis=-1),
            ((section >= FIRST_BLOCK) & (section <= LAST_BLOCK)).astype(np.float64),
        )
