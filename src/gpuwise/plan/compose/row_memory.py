"""The memory of the strategies of a Space, and a lower bound of it from one moment of the step.

Live bytes are counted where they can be most: in forward and backward, in the first and the last block of a rank, before its
blocks and behind them. They do not depend on the chip.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

from gpuwise.plan.compose.job_arrays import WHOLE, JobArrays
from gpuwise.plan.compose.row_buffers import RowBuffers, lives_of
from gpuwise.plan.compose.row_moments import MomentRows
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS
from gpuwise.plan.compose.space_rows import Space

_ALL = tuple(product((0, 1), range(MomentRows.SLOTS), (0, 1)))  # micro-step, moment, pass
_FIRST_BACKWARD = ((0, MomentRows.SLOTS - 1, 1),)  # of the first micro-batch: all activations are there


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

    def _of_kinds(self, work: np.ndarray, layout: np.ndarray, at: Iterable[tuple[int, int, int]]) -> np.ndarray:
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

    def _of_kind(
        self, kind: str, work: np.ndarray, layout: np.ndarray, at: Iterable[tuple[int, int, int]], *, ranks: int
    ) -> np.ndarray:
        arrays, works = self._arrays, self._space.works
        entry, column, pipe, accumulation = (one[work] for one in (works.entry, works.column, works.pipe, works.accumulation))
        weights = self._space.weights[pipe].transpose(1, 0, 2)[:ranks]
        lives = lives_of(weights, freed=kind == "shards")
        buffers = RowBuffers.of(arrays, self._space, work, layout, kind=kind, weights=weights)
        saved, kept = arrays.saved[lives, entry, column], arrays.kept[lives, entry, column]
        whole = (weights * saved).sum(axis=-1)
        flying = works.in_flight[:ranks, work]
        later = np.maximum(1, np.minimum(flying, accumulation - 1))
        own = np.ones_like(buffers.keeps_gradients) if kind == "shards" else ~buffers.keeps_gradients
        best, of_best = np.full(whole.shape, -np.inf), np.zeros(whole.shape)
        for micro_step, slot, turn in at:
            moment = self._moments.at(slot, pipe, ranks=ranks)
            own_too = own.astype(np.int64) if kind == "shards" or not micro_step else 0
            of_peaks = arrays.peaks[lives, entry, column, moment.section, turn, micro_step]
            before, after = moment.has_before, moment.has_after
            index = np.arange(ranks)[:, None], np.arange(len(work)), before, after
            plain, peak = of_peaks[*index, 0], of_peaks[*index, own_too]
            activations = ((saved if turn else kept) * moment.before).sum(axis=-1)
            activations = activations + whole * ((later if micro_step else flying) - 1)
            added, added_moving = buffers.at(moment, turn, micro_step)
            runs = accumulation > 1 if micro_step else np.ones(len(work), dtype=bool)
            total = np.where(runs, activations + peak + added, 0.0)
            moving = np.where(runs, activations + plain + added_moving, 0.0)
            of_best = np.where(total > best, moving, of_best)
            best = np.maximum(best, total)
        best = best + self._lasting_bytes(work, layout, weights)
        largest = best.argmax(axis=0)[None]
        return np.stack([np.take_along_axis(one, largest, 0)[0] for one in (best, of_best)])

    def _lasting_bytes(self, work: np.ndarray, layout: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Parameters, the optimizer's state, batches and what a stage receives. Shape (ranks, rows)."""
        arrays, works = self._arrays, self._space.works
        entry, column = works.entry[work], works.column[work]
        split, holding = self._space.layouts.dp_shard[layout], arrays.holding[entry]
        parameter, gradient = arrays.held_bytes(holding, weights)
        elements = gradient / arrays.element_bytes[holding] / split
        state = arrays.state_bytes[0][holding] + arrays.state_bytes[1][holding] * elements
        before, after = weights[..., BEFORE_BLOCKS], weights[..., AFTER_BLOCKS]
        inputs = arrays.inputs[WHOLE, entry, column] * np.where(before > 0, before, after)
        result = parameter * arrays.widened[holding] / split + state + inputs
        if len(weights) > 1:
            stages = works.stages[work]
            onward = arrays.received_forward[WHOLE, entry, column] * (stages - before)
            back = arrays.received_backward[WHOLE, entry, column] * (stages - after)
            result = result + (onward + back) * works.accumulation[work]
        return result
