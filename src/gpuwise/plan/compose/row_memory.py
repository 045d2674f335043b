"""The memory of the strategies of a Space, and a lower bound of it from one moment of the step.

Live bytes are counted where they can be most: in forward and backward, in the first and the last block of a rank, before its
blocks and behind them. They do not depend on the chip.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuwise.plan.compose.job_arrays import WHOLE, JobArrays
from gpuwise.plan.compose.row_buffers import RowBuffers, WorkRows, lives_of
from gpuwise.plan.compose.row_moments import MomentRows
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS
from gpuwise.plan.compose.space_rows import Space


class Moments(NamedTuple):
    """Moments of a step at which bytes are counted: micro-steps, slots of MomentRows, and passes."""

    micro_steps: tuple[int, ...]
    slots: slice
    turns: tuple[int, ...]


_ALL = Moments((0, 1), slice(None), (0, 1))
_FIRST_BACKWARD = Moments((0,), slice(-1, None), (1,))  # of the first micro-batch: all activations are there


class RowMemory:
    """Bytes of strategies."""

    def __init__(self, arrays: JobArrays, space: Space):
        self._arrays, self._space = arrays, space
        self._moments = MomentRows(space.weights)

    def live_bytes(self, work: np.ndarray, layout: np.ndarray) -> np.ndarray:
        """Live bytes at their peak on the rank that needs most, and those of activations and temporaries. Shape (2, rows)."""
        return self._of_kinds(work, layout, _ALL)

    def least_bytes(self, work: np.ndarray, layout: np.ndarray) -> np.ndarray:
        """As live_bytes, where backward begins: not more than at the peak."""
        return self._of_kinds(work, layout, _FIRST_BACKWARD)

    def _of_kinds(self, work: np.ndarray, layout: np.ndarray, at: Moments) -> np.ndarray:
        sharded, pipelined = self._space.sharded[layout], self._space.works.pp[work] > 1
        result = np.zeros((2, len(work)))
        for kind, there in (
            ("copies", ~sharded & ~pipelined),
            ("copies", ~sharded & pipelined),
            ("shards", sharded & ~pipelined),
            ("stages", sharded & pipelined),
        ):
            rows = np.flatnonzero(there)
            if len(rows):
                ranks = 3 if pipelined[rows[0]] else 1
                result[:, rows] = self._of_kind(kind, work[rows], layout[rows], at, ranks=ranks)
        return result

    def _of_kind(self, kind: str, work: np.ndarray, layout: np.ndarray, at: Moments, *, ranks: int) -> np.ndarray:
        works = self._space.works
        distinct, of_row = _distinct(work, len(works))
        rows = WorkRows(distinct, of_row, layout)
        own_tensors = OwnTensors(self._arrays, self._space, self._moments, distinct, freed=kind == "shards", ranks=ranks)
        weights = self._space.weights[works.pipe[distinct]].transpose(1, 0, 2)[:ranks]
        buffers = RowBuffers.of(self._arrays, self._space, rows, kind=kind, weights=weights)
        several, moments = works.accumulation[work] > 1, self._moments.chosen(works.pipe[work], ranks=ranks, slots=at.slots)
        best, of_best = np.full((ranks, len(work)), -np.inf), np.zeros((ranks, len(work)))
        for micro_step in at.micro_steps:
            totals, movings = [], []
            for turn in at.turns:
                plain, with_own, gradients_after, in_buffers = (
                    part[..., of_row] for part in own_tensors.at(micro_step, turn, at.slots)
                )
                added, added_moving = buffers.at(moments, gradients_after, turn, micro_step)
                totals.append(np.where(buffers.keeps_gradients, plain, with_own) + added)
                movings.append(plain - in_buffers + added_moving)
            total, moving = (np.stack(parts, axis=1).reshape(-1, *best.shape) for parts in (totals, movings))
            if micro_step:
                total, moving = np.where(several, total, 0.0), np.where(several, moving, 0.0)
            most = total.argmax(axis=0)[None]
            of_step, of_moving = (np.take_along_axis(one, most, 0)[0] for one in (total, moving))
            of_best = np.where(of_step > best, of_moving, of_best)
            best = np.maximum(best, of_step)
        best = best + self._lasting_bytes(rows, weights)
        largest = best.argmax(axis=0)[None]
        return np.stack([np.take_along_axis(one, largest, 0)[0] for one in (best, of_best)])

    def _lasting_bytes(self, rows: WorkRows, weights: np.ndarray) -> np.ndarray:
        """Parameters, the optimizer's state, batches and what a stage receives. Shape (ranks, rows).

        weights: sections of the ranks of the distinct works. Shape (ranks, works, sections).
        """
        arrays, works, of_row = self._arrays, self._space.works, rows.of_row
        entry, column = works.entry[rows.works], works.column[rows.works]
        split, holding = self._space.layouts.shards[rows.layout], arrays.holding[entry]
        parameter, gradient = arrays.held_bytes(arrays.whole_holding[entry], weights)
        elements = (gradient / arrays.element_bytes[holding])[:, of_row] / split
        state = arrays.state_bytes[0][holding][of_row] + arrays.state_bytes[1][holding][of_row] * elements
        before, after = weights[..., BEFORE_BLOCKS], weights[..., AFTER_BLOCKS]
        inputs = arrays.inputs[WHOLE, entry, column] * np.where(before > 0, before, after)
        result: np.ndarray = (parameter * arrays.widened[holding])[:, of_row] / split + state + inputs[:, of_row]
        if len(weights) > 1:
            stages = works.stages[rows.works]
            onward = arrays.received_forward[WHOLE, entry, column] * (stages - before)
            back = arrays.received_backward[WHOLE, entry, column] * (stages - after)
            result = result + ((onward + back) * works.accumulation[rows.works])[:, of_row]
        return result


def _distinct(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers below a count, ascending, and which of them each is: np.unique without its sort."""
    there = np.zeros(count, dtype=bool)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


class OwnTensors:
    """Activations and temporaries of works at the moments of a step: of the work itself, in any layout.

    Arguments:
        work: of the Space.
        freed: whether gradients leave at the end of a block's backward.
        ranks: the first of those that differ.
    """

    def __init__(self, arrays: JobArrays, space: Space, moments: MomentRows, work: np.ndarray, *, freed: bool, ranks: int):
        works, self._moments, self._freed, self._ranks = space.works, moments, freed, ranks
        entry, column, self._pipe = works.entry[work], works.column[work], works.pipe[work]
        weights = space.weights[self._pipe].transpose(1, 0, 2)[:ranks]
        lives = lives_of(weights, freed=freed)
        self._saved, self._kept, self._gathered = (
            np.moveaxis(one[lives, entry, column], -1, 0) for one in (arrays.saved, arrays.kept, arrays.gathered)
        )
        self._gradients = np.moveaxis(arrays.gradients[lives, entry], -1, 0)
        self._peaks, self._index = arrays.peaks, (lives, entry, column)
        whole, buffers = ((np.moveaxis(weights, -1, 0) * part).sum(axis=0) for part in (self._saved, self._gathered))
        flying, accumulation = works.in_flight[:ranks, work], works.accumulation[work]
        later = np.maximum(1, np.minimum(flying, accumulation - 1))
        self._others = [whole * (flying - 1), whole * (later - 1)]
        self._other_buffers = [buffers * (flying - 1), buffers * (later - 1)]

    def at(self, micro_step: int, turn: int, slots: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Bytes without gradients, those with the gradients that the section makes, gradients of what is behind, and of the
        first what is in buffers that ranks filled for each other.

        Each has the shape (slots, ranks, works).
        """
        moment = self._moments.chosen(self._pipe, ranks=self._ranks, slots=slots)
        before, after = (part[slots, :, : self._ranks][..., self._pipe] for part in (self._moments.before, self._moments.after))
        peaks = self._peaks[*self._index, moment.section, turn, micro_step, moment.has_before, moment.has_after]
        activations = ((self._saved if turn else self._kept) * before).sum(axis=1) + self._others[micro_step]
        in_buffers = (self._gathered * before).sum(axis=1) + self._other_buffers[micro_step]
        own = 1 if self._freed or not micro_step else 0
        gradients_after = (after * self._gradients).sum(axis=1)
        return activations + peaks[..., 0], activations + peaks[..., own], gradients_after, in_buffers
