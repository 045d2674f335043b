"""What ranks hold of gradients and of gathered parameters at each moment of a step, as gpuwise.trace.parallel has it of one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.plan.compose.moments import Moment
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, FIRST_BLOCK, LAST_BLOCK
from gpuwise.plan.compose.steps import MeshSteps
from gpuwise.trace.parallel.shard import REDUCED_BYTES
from gpuwise.trace.parallel.variant import shard_ranks

_BLOCKS = slice(FIRST_BLOCK, LAST_BLOCK + 1)


@dataclass(frozen=True)
class Buffers:
    """Gradients, gathered parameters and buffers of one rank.

    Attributes:
        weights: how many of each section the rank has.
        gradients: bytes of a section's full gradients.
        block_bytes, rest_bytes: parameters of a block, and of what is in none, as gathered.
        whole_gradients: bytes of a gradient that waits for its reduction, over those recorded.
        shard: bytes of a gradient's shard over those recorded; 0 where gradients are not split.
        reduced: bytes of a gradient that is reduced, over those recorded.
        kind: "copies" keep gradients as one device does, or all the time; "shards" gather and reduce block by block; "stages"
            do so once a step.
        keeps_gradients: whether gradients are there all the time.
        freed: whether parameters are freed after a block's forward.
        postponed: whether gradients are reduced in the last micro-batch alone.
        accumulation: micro-batches of a step.
    """

    weights: np.ndarray
    gradients: np.ndarray
    block_bytes: float
    rest_bytes: float
    whole_gradients: np.ndarray
    shard: float
    reduced: float
    kind: str
    keeps_gradients: bool
    freed: bool
    postponed: np.ndarray
    accumulation: np.ndarray

    @property
    def frees_gradients(self) -> bool:
        """Whether full gradients leave at the end of a block's backward."""
        return self.kind == "shards"

    def at(self, moment: Moment, micro_step: int) -> tuple[np.ndarray, np.ndarray]:
        """Bytes at a moment of a micro-batch beside its own tensors, and how many of them move. Shape (micro-batches,)."""
        none, behind = np.zeros(len(self.accumulation)), Behind(self, moment, micro_step)
        if self.kind == "copies":
            return none + behind.kept_gradients(), none
        if self.kind == "stages":
            return none + behind.kept_gradients() + behind.gathered_by_stage(), none
        waiting = behind.waiting_gradients()
        return none + behind.gathered_by_block() + behind.reduced_gradients() + waiting, waiting

    @property
    def blocks(self) -> float:
        """Number of the rank's blocks."""
        return float(self.weights[_BLOCKS].sum())

    @property
    def block_gradients(self) -> float:
        """Bytes of a block's gradients, the mean of those of the rank."""
        return float(self.gradients[_BLOCKS] @ self.weights[_BLOCKS]) / max(1.0, self.blocks)

    @property
    def all_gradients(self) -> float:
        """Bytes of the rank's gradients."""
        return float(self.weights @ self.gradients)

    @property
    def rest_gradients(self) -> float:
        """Bytes of the gradients of what is in no block."""
        return self.all_gradients - self.blocks * self.block_gradients


class Behind:
    """The parts of Buffers.at: what blocks before and behind a moment have gathered, and made."""

    def __init__(self, buffers: Buffers, moment: Moment, micro_step: int):
        self._buffers, self._section = buffers, moment.section
        self._second, self._backward = micro_step == 1, bool(moment.turn)
        self._own = float(FIRST_BLOCK <= moment.section <= LAST_BLOCK)
        self._before, self._after = float(moment.before[_BLOCKS].sum()), float(moment.after[_BLOCKS].sum())
        self._after_gradients = float(moment.after @ buffers.gradients)
        self._edge_after = float(moment.after[AFTER_BLOCKS] * buffers.gradients[AFTER_BLOCKS])

    def kept_gradients(self) -> np.ndarray:
        """Gradients that stay until the update: all, or in the first backward those of what is behind."""
        buffers = self._buffers
        there = buffers.all_gradients if buffers.keeps_gradients or self._second else self._after_gradients * self._backward
        return there * buffers.whole_gradients

    def gathered_by_stage(self) -> float:
        """Whole parameters of a stage: gathered a block ahead, and in backward not freed before its end."""
        buffers, count = self._buffers, self._buffers.blocks
        if buffers.freed:
            ahead = min(1.0, self._before) if self._backward else 0.0
            count = self._own + ahead + (self._after if self._backward or self._second else 0.0)
        return buffers.rest_bytes + count * buffers.block_bytes

    def gathered_by_block(self) -> float:
        """Whole parameters and the buffers they are gathered in: of a block and the one gathered for it or after it."""
        buffers, edge = self._buffers, self._section == AFTER_BLOCKS
        if buffers.freed:
            last_in_backward = self._backward and self._own and not self._before
            count = float(edge) if not self._own else 1.0 if last_in_backward else 2.0
        elif self._backward or self._second:
            count = self._before + self._own if self._backward else buffers.blocks
        else:
            count = self._before + (0.0 if edge else 2 * self._own)
        twice = self._section == BEFORE_BLOCKS and not self._backward
        return buffers.rest_bytes * (1 + twice) + count * buffers.block_bytes

    def reduced_gradients(self) -> np.ndarray:
        """Shards that have arrived, full gradients of what is in no block, and the buffers of reductions."""
        buffers, block = self._buffers, self._buffers.block_gradients
        done = block * self._after * self._backward
        early = buffers.all_gradients if self._second else done
        arrived = np.where(buffers.postponed, done * self._second, early) * buffers.shard
        reduces = ~buffers.postponed | self._second
        reduction = np.where(reduces, block * buffers.reduced * (self._backward and self._after > 0), 0.0)
        first = self._second and not (self._backward and self._after)
        kept = np.where((buffers.accumulation > 1) & ~buffers.postponed & first, buffers.rest_gradients * buffers.reduced, 0.0)
        return arrived + self._edge_after * self._backward + reduction + kept

    def waiting_gradients(self) -> np.ndarray:
        """Sums of a micro-batch's gradients that wait for the next one; those of what is in no block until its end."""
        buffers, done = self._buffers, self._buffers.block_gradients * self._after * self._backward
        waiting = buffers.all_gradients - done if self._second else done
        return np.where(buffers.postponed, waiting * buffers.reduced, 0.0)


def buffers_of(steps: MeshSteps, number: int, gradients: np.ndarray) -> Buffers:
    """The buffers of one of the ranks that differ. gradients: bytes of a section's full gradients."""
    strategy, weights, accumulation = steps.strategy, steps.ranks.weights[number], steps.accumulation
    size_bytes, widened = steps.table.element_bytes(sharded=steps.sharded)
    of_rank, _ = steps.table.holdings(tp=strategy.mesh.tp, sharded=steps.sharded)
    edges = weights.copy()
    edges[_BLOCKS] = 0.0
    rest = float(of_rank.of_ranks(edges[None])[0][0])
    whole = float(of_rank.of_ranks(weights[None])[0][0])
    blocks = max(1.0, float(weights[_BLOCKS].sum()))
    reduced = REDUCED_BYTES / size_bytes
    kind = ("stages" if strategy.mesh.pp > 1 else "shards") if steps.sharded else "copies"
    return Buffers(
        weights=weights,
        gradients=gradients,
        block_bytes=(whole - rest) / blocks,
        rest_bytes=rest,
        whole_gradients=np.where(accumulation > 1, reduced, 1.0) if kind == "stages" else np.ones(len(accumulation)),
        shard=widened / shard_ranks(strategy) if steps.sharded else 0.0,
        reduced=reduced,
        kind=kind,
        keeps_gradients=kind == "copies" and strategy.mesh.dp_replicate > 1,
        freed=strategy.parallelism.shard == "parameters",
        postponed=(accumulation > 1) & (strategy.parallelism.shard == "optimizer"),
        accumulation=accumulation,
    )
