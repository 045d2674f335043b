"""What ranks hold of gradients and of gathered parameters at a moment of many steps, as trace.parallel has it of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuwise.plan.compose.job_arrays import FREED, LAST, OTHERS, WHOLE, JobArrays
from gpuwise.plan.compose.row_moments import MomentRow
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, FIRST_BLOCK, LAST_BLOCK
from gpuwise.plan.compose.space_rows import Space
from gpuwise.strategy.parallelism import SHARDS
from gpuwise.trace.parallel.shard import REDUCED_BYTES

_BLOCKS = slice(FIRST_BLOCK, LAST_BLOCK + 1)


class WorkRows(NamedTuple):
    """Strategies of a Space: the distinct works, which of them each row has, and its layout."""

    works: np.ndarray
    of_row: np.ndarray
    layout: np.ndarray


@dataclass(frozen=True)
class RowBuffers:
    """Gradients, gathered parameters and buffers of the ranks of many steps. Shapes are (ranks, rows) or broadcast to it.

    Attributes:
        kind: "copies" keep gradients as one device does, or all the time; "shards" gather and reduce block by block; "stages"
            do so once a step.
        edge_gradients: bytes of the full gradients of what comes after the blocks.
        blocks: number of a rank's blocks.
        all_gradients, block_gradients: bytes of a rank's gradients, and of a block's, the mean of those of the rank.
        block_bytes, rest_bytes: parameters of a block, and of what is in none, as gathered.
        shard: bytes of a gradient's shard over those recorded; 0 where gradients are not split.
        reduced: bytes of a gradient that is reduced, over those recorded.
        keeps_gradients: whether gradients are there all the time.
        freed: whether parameters are freed after a block's forward.
        postponed: whether gradients are reduced in the last micro-batch alone.
        several: whether a step has more than one micro-batch.
    """

    kind: str
    edge_gradients: np.ndarray
    blocks: np.ndarray
    all_gradients: np.ndarray
    block_gradients: np.ndarray
    block_bytes: np.ndarray
    rest_bytes: np.ndarray
    shard: np.ndarray
    reduced: np.ndarray
    keeps_gradients: np.ndarray
    freed: np.ndarray
    postponed: np.ndarray
    several: np.ndarray

    @classmethod
    def of(cls, arrays: JobArrays, space: Space, rows: WorkRows, *, kind: str, weights: np.ndarray) -> RowBuffers:
        """The buffers of strategies. weights: sections of the ranks of the distinct works. Shape (ranks, works, sections)."""
        entry, layouts, of_row, layout = space.works.entry[rows.works], space.layouts, rows.of_row, rows.layout
        several = (space.works.accumulation[rows.works] > 1)[of_row]
        gradients = arrays.gradients[lives_of(weights, freed=kind == "shards"), entry]
        edges = weights.copy()
        edges[..., _BLOCKS] = 0.0
        holding = arrays.holding[entry]
        rest, (whole, own) = arrays.held_bytes(holding, edges)[0], arrays.held_bytes(holding, weights)
        of_all = arrays.held_bytes(arrays.whole_holding[entry], weights)[1]  # gradients of the experts of all ranks, too
        blocks = weights[..., _BLOCKS].sum(axis=-1)
        each = np.maximum(1.0, blocks)
        shard = np.where(layouts.shard[layout] == len(SHARDS), 0, layouts.shard[layout])
        return cls(
            kind=kind,
            edge_gradients=gradients[..., AFTER_BLOCKS][:, of_row],
            blocks=blocks[:, of_row],
            all_gradients=(weights * gradients).sum(axis=-1)[:, of_row],
            block_gradients=((weights * gradients)[..., _BLOCKS].sum(axis=-1) / each)[:, of_row],
            block_bytes=((whole - rest) / each)[:, of_row],
            rest_bytes=rest[:, of_row],
            shard=(arrays.widened[holding] * of_all / np.maximum(1.0, own))[:, of_row] / layouts.shards[layout],
            reduced=(REDUCED_BYTES / arrays.element_bytes[holding])[of_row],
            keeps_gradients=(layouts.dp_replicate[layout] > 1) & (kind == "copies"),
            freed=shard == SHARDS.index("parameters"),
            postponed=several & (shard == SHARDS.index("optimizer")),
            several=several,
        )

    def at(
        self, moment: MomentRow, gradients_after: np.ndarray, turn: int, micro_step: int
    ) -> tuple[np.ndarray, np.ndarray | float]:
        """Bytes at moments beside their own tensors, and how many of them move. Shapes broadcast to (slots, ranks, rows).

        Arguments:
            gradients_after: of what runs behind it.
            turn: 0 in forward, 1 in backward.
        """
        backward, second = bool(turn), micro_step == 1
        if self.kind == "copies":
            return self._kept_gradients(gradients_after, backward=backward, second=second), 0.0
        if self.kind == "stages":
            kept = self._kept_gradients(gradients_after, backward=backward, second=second)
            whole = np.where(self.several, self.reduced, 1.0)
            return kept * whole + self._gathered_by_stage(moment, backward=backward, second=second), 0.0
        waiting = self._waiting_gradients(moment, backward=backward, second=second)
        gathered = self._gathered_by_block(moment, backward=backward, second=second)
        return gathered + self._reduced_gradients(moment, backward=backward, second=second) + waiting, waiting

    def _kept_gradients(self, gradients_after: np.ndarray, *, backward: bool, second: bool) -> np.ndarray:
        """Gradients that stay until the update: all, or in the first backward those of what is behind."""
        if second:
            return self.all_gradients
        return np.where(self.keeps_gradients, self.all_gradients, gradients_after if backward else 0.0)

    def _gathered_by_stage(self, moment: MomentRow, *, backward: bool, second: bool) -> np.ndarray:
        """Whole parameters of a stage: gathered a block ahead, and in backward not freed before its end."""
        ahead = np.minimum(1.0, moment.blocks_before) if backward else 0.0
        behind = moment.blocks_after if backward or second else 0.0
        count = np.where(self.freed, moment.own + ahead + behind, self.blocks)
        return self.rest_bytes + count * self.block_bytes

    def _gathered_by_block(self, moment: MomentRow, *, backward: bool, second: bool) -> np.ndarray:
        """Whole parameters and the buffers they are gathered in: of a block and the one gathered for it or after it."""
        edge, before = moment.section == AFTER_BLOCKS, moment.blocks_before
        last = (before == 0) & backward
        freed = np.where(moment.own == 0, edge, np.where(last, 1.0, 2.0))
        if backward:
            kept = before + moment.own
        elif second:
            kept = self.blocks
        else:
            kept = before + np.where(edge, 0.0, 2 * moment.own)
        twice = (moment.section == BEFORE_BLOCKS) & (not backward)
        return self.rest_bytes * (1 + twice) + np.where(self.freed, freed, kept) * self.block_bytes

    def _reduced_gradients(self, moment: MomentRow, *, backward: bool, second: bool) -> np.ndarray:
        """Shards that have arrived, full gradients of what is in no block, and the buffers of reductions."""
        block, behind = self.block_gradients, moment.blocks_after
        done = block * behind * backward
        early = self.all_gradients if second else done
        arrived = np.where(self.postponed, done * second, early) * self.shard
        reduces = ~self.postponed | second
        reduction = np.where(reduces, block * self.reduced * ((behind > 0) & backward), 0.0)
        first = second & ~((behind > 0) & backward)
        rest = self.all_gradients - self.blocks * block
        kept = np.where(self.several & ~self.postponed & first, rest * self.reduced, 0.0)
        edge_after = moment.edge_after * self.edge_gradients if backward else 0.0
        return arrived + edge_after + reduction + kept

    def _waiting_gradients(self, moment: MomentRow, *, backward: bool, second: bool) -> np.ndarray:
        """Sums of a micro-batch's gradients that wait for the next one; those of what is in no block until its end."""
        done = self.block_gradients * moment.blocks_after * backward
        waiting = self.all_gradients - done if second else done
        return np.where(self.postponed, waiting * self.reduced, 0.0)


def lives_of(weights: np.ndarray, *, freed: bool) -> np.ndarray:
    """The kind of LIVES of ranks. weights: sections of the ranks. Shape (ranks, rows, sections)."""
    before, after = weights[..., BEFORE_BLOCKS] > 0, weights[..., AFTER_BLOCKS] > 0
    whole = np.where(before & after, WHOLE, np.where(after, LAST, OTHERS))
    return np.full_like(whole, FREED) if freed else whole
