"""One of several shards: data parallel as fully_shard (FSDP2) does it.

Each repeated block is a unit, and the rest of the model another. Parameters of a unit are gathered before it runs, freed
after it, and gathered again for its backward; its gradients are reduced and scattered after that.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.blocks import block_of_modules, full_gradients, spans
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.shard_traffic import RankExperts, traffic
from gpuwise.trace.parallel.variant import in_experts, ranks_of_modules, recorded_as, shard_ranks
from gpuwise.trace.tables import BEFORE, CATEGORIES, Storages
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.sharded import with_scaled_update, with_sharded_update

_PARAMETER, _GRADIENT, _TEMPORARY, _BUFFER = (
    CATEGORIES.index(name) for name in ("parameter", "gradient", "temporary", "communication_buffer")
)
_GATHERED_BYTES = {"bf16": 2, "amp-bf16": 2, "amp-fp16": 2}  # of a parameter's element, by precision; others: 4
_GATHERING, _REDUCING = 1, 2  # streams beside the one that computes
REDUCED_BYTES = 4  # of a gradient's element: gradients are reduced in fp32


def sharded(trace: Trace, strategy: Strategy) -> tuple[Trace, Communication]:
    """The trace of rank 0 under strategy.mesh.dp_shard, and what it communicates. The header keeps its strategy.

    Arguments:
        trace: as for `data_parallel`.
    """
    gathered_bytes, widened = element_bytes(strategy)
    optimizer = strategy.optimizer or trace.header.strategy.optimizer
    if optimizer is None:
        trace = with_scaled_update(trace, widened / shard_ranks(strategy))
    else:
        trace = with_sharded_update(trace, strategy, optimizer, ranks=ranks_of_modules(trace, strategy), widened=widened)
    step = _ShardedStep(trace, strategy, gathered_bytes=gathered_bytes, widened=widened)
    for micro_step in range(2):
        step.run_micro_batch(micro_step)
    step.keep_gradients()
    operations = trace.operations.in_fp16() if strategy.precision == "amp-fp16" else trace.operations
    return replace(trace, storages=step.storages(), operations=operations), step.communication()


def element_bytes(strategy: Strategy) -> tuple[int, float]:
    """Bytes of an element of a gathered parameter, as recorded, and those of a sharded one over them."""
    gathered_bytes = _GATHERED_BYTES.get(recorded_as(strategy).precision, 4)
    return gathered_bytes, (4 if strategy.precision.startswith("amp-") else gathered_bytes) / gathered_bytes


class _Buffer(NamedTuple):
    """A storage that a step of one device does not have. born and died: positions. stream: whose pool it is from."""

    size_bytes: float
    category: int
    born: int
    died: int
    stream: int = 0


def _buffers(size_bytes: np.ndarray, category: int, born: np.ndarray, died: np.ndarray, *, stream: int = 0) -> list[_Buffer]:
    rows = zip(size_bytes.tolist(), repeat(category), born.tolist(), died.tolist(), repeat(stream), strict=False)
    return list(map(_Buffer._make, rows))


class _ShardedStep:
    """The storages of a step as sharding changes them.

    Arguments:
        gathered_bytes: of an element of a gathered parameter, as recorded.
        widened: bytes of an element of a sharded parameter over those of a gathered one.

    Units are numbered from 0: what is in no block, then the blocks in their order.
    """

    def __init__(self, trace: Trace, strategy: Strategy, *, gathered_bytes: int, widened: float):
        storages = trace.storages
        self._trace, self._strategy, self._widened, self._element_bytes = trace, strategy, widened, gathered_bytes
        self._ranks = ranks_of_modules(trace, strategy)[storages.module]  # of each storage's parameter
        self._freed = strategy.parallelism.shard == "parameters"  # whether parameters are freed after forward
        self._block_of = block_of_modules(trace.modules, trace.header.blocks)
        self._blocks = range(self._block_of.max() + 1)
        parameter, self._gradient = storages.category == _PARAMETER, storages.category == _GRADIENT
        self._size_bytes = storages.size_bytes.astype(np.float64)
        self._size_bytes[parameter] *= widened / self._ranks[parameter]
        self._gathered_bytes, trained_bytes = (self._unit_bytes(rows) for rows in (parameter, self._gradient))
        self._reduced_bytes = trained_bytes / gathered_bytes * REDUCED_BYTES
        self._died = storages.died.copy()
        # Positions by unit: where gradients have become shards, and where those of a micro-batch have been added up.
        self._reduced_at = np.full(len(self._blocks) + 1, -1)
        self._added_up_at = np.full(len(self._blocks) + 1, -1)
        self._postponed = strategy.parallelism.shard == "optimizer" and strategy.accumulation > 1
        self._held_from = 0
        self._buffers: list[_Buffer] = []

    def run_micro_batch(self, micro_step: int) -> None:
        """Adds the buffers of one micro-batch, and ends its full gradients."""
        forward = spans(self._trace, self._block_of, micro_step, ("forward",))
        backward = spans(self._trace, self._block_of, micro_step, ("backward", "recompute"))
        order = sorted((b for b in self._blocks if backward[b][1] >= 0), key=lambda block: forward[block][0])
        self._gather_forward(micro_step, order, forward, backward)
        gradients = full_gradients(self._trace, micro_step)
        last_reduction_bytes = self._run_backward(micro_step, order, backward, gradients)
        self._arrive(micro_step, -1, backward[-1][1])
        self._run_rest(micro_step, forward[-1][0], backward[-1][1], gradients, last_reduction_bytes)

    def keep_gradients(self) -> None:
        """Adds the shards of the gradients."""
        storages, rows = self._trace.storages, np.flatnonzero(self._gradient)
        shard_bytes = storages.size_bytes[rows] * self._widened / self._ranks[rows]
        arrived = self._reduced_at[self._block_of[storages.module[rows]] + 1]
        if self._strategy.keep_gradients:  # what arrives is added to them
            length = len(self._trace.sequence)
            self._buffers += _buffers(shard_bytes, _TEMPORARY, arrived, arrived)
            self._buffers += _buffers(shard_bytes, _GRADIENT, np.full_like(arrived, BEFORE), np.full_like(arrived, length))
        else:
            self._buffers += _buffers(shard_bytes, _GRADIENT, arrived, storages.died[rows], stream=_REDUCING)

    def storages(self) -> Storages:
        storages = self._trace.storages
        added = np.array(self._buffers, dtype=np.float64).reshape(-1, len(_Buffer._fields))
        added = added[added[:, 3] >= added[:, 2]]
        size_bytes, category, born, died, stream = added.T
        result = Storages(
            size_bytes=np.concatenate([np.ceil(self._size_bytes), np.ceil(size_bytes)]).astype(np.int64),
            category=np.concatenate([storages.category, category.astype(np.int8)]),
            module=np.concatenate([storages.module, np.zeros(len(added), dtype=storages.module.dtype)]),
            born=np.concatenate([storages.born, born.astype(np.int32)]),
            died=np.concatenate([self._died, died.astype(np.int32)]),
            stream=np.concatenate([storages.stream, stream.astype(storages.stream.dtype)]),
        )
        assert result.died.max() <= len(self._trace.sequence)
        return result

    def communication(self) -> Communication:
        """The collectives of a step."""
        return traffic(
            self._strategy,
            gathered_bytes=self._gathered_bytes,
            reduced_bytes=self._reduced_bytes,
            tensors=int(self._gradient.sum()),
            experts=self._experts(),
        )

    def _experts(self) -> RankExperts:
        """The experts of which this rank has a part."""
        if self._strategy.mesh.ep == 1:
            return RankExperts()
        storages, inside = self._trace.storages, in_experts(self._trace)
        parameter_bytes, gradient_bytes = (
            float(storages.size_bytes[(storages.category == category) & inside[storages.module]].sum())
            for category in (_PARAMETER, _GRADIENT)
        )
        return RankExperts(parameter_bytes, gradient_bytes / self._element_bytes * REDUCED_BYTES)

    def _unit_bytes(self, rows: np.ndarray) -> np.ndarray:
        """Recorded bytes of these storages by unit. Shape (units,)."""
        storages = self._trace.storages
        unit = self._block_of[storages.module[rows]] + 1
        return np.bincount(unit, weights=storages.size_bytes[rows], minlength=len(self._blocks) + 1)

    def _gather_forward(
        self, micro_step: int, order: list[int], forward: dict[int, tuple[int, int]], backward: dict[int, tuple[int, int]]
    ) -> None:
        """Parameters are copied out of the buffer in which they were gathered, and that lives until the next copy is made: the
        last one's until the loss is there. Those that are not freed after forward stay for all micro-batches.
        """
        begin, end = forward[-1]
        kept = micro_step > 0 and not self._freed
        copied_bytes, since = self._gathered_bytes[0], begin
        for block in order:
            first, last = forward[block]
            block_bytes = self._gathered_bytes[block + 1]
            if not kept:
                self._gather(copied_bytes, since, first)
                self._gather(block_bytes / shard_ranks(self._strategy) if self._widened > 1 else 0.0, first, first)
            until = last if self._freed else backward[block][1]
            self._buffers.append(_Buffer(block_bytes, _BUFFER, begin if kept else first, until))
            copied_bytes, since = block_bytes, first
        if not kept:
            self._gather(copied_bytes, since, end)

    def _gather(self, size_bytes: float, born: int, died: int) -> None:
        self._buffers.append(_Buffer(size_bytes, _BUFFER, born, died, _GATHERING))

    def _run_backward(
        self, micro_step: int, order: list[int], backward: dict[int, tuple[int, int]], gradients: np.ndarray
    ) -> float:
        """The blocks' part of backward. Returns the bytes of the last reduction.

        A block is gathered while the block before it still runs, the first of them at the beginning, and freed when its own
        backward is done. Its gradients then go into the buffer of the reduction, which lives until the next block's backward
        is done.

        Arguments:
            gradients: rows of the full gradients of this micro-batch.
        """
        (gathered_from, end), reduction_bytes = backward[-1], 0.0
        unit = self._block_of[self._trace.storages.module[gradients]]
        for index, block in reversed(list(enumerate(order))):
            first, last = backward[block]
            if self._freed:
                self._gather(self._gathered_bytes[block + 1], min(gathered_from, first), first - 1)
                self._buffers.append(_Buffer(self._gathered_bytes[block + 1], _BUFFER, first, last))
            rows = gradients[unit == block]
            self._died[rows] = np.maximum(last, self._trace.storages.born[rows])
            self._arrive(micro_step, block, min(last + 1, end))
            if self._reduces(micro_step):
                reduction_bytes = self._reduced_bytes[block + 1]
                reduced = backward[order[index - 1]][1] if index else end
                self._buffers.append(_Buffer(reduction_bytes, _BUFFER, last + 1, reduced))
            gathered_from = first
        self._hold_until_next(micro_step, order, backward)
        return reduction_bytes

    def _reduces(self, micro_step: int) -> bool:
        """Whether gradients are reduced in a micro-batch; if only optimizer state is sharded, in the last alone."""
        return micro_step > 0 or not self._postponed

    def _arrive(self, micro_step: int, block: int, position: int) -> None:
        """Notes where gradients of a unit have been reduced, or else added up as they are."""
        if self._reduces(micro_step) and self._reduced_at[block + 1] < 0:
            self._reduced_at[block + 1] = position
        if self._postponed:
            if micro_step == 0:
                self._added_up_at[block + 1] = position
            else:
                added = self._added_up_at[block + 1]
                self._buffers.append(_Buffer(self._reduced_bytes[block + 1], _TEMPORARY, added, position - 1))

    def _hold_until_next(self, micro_step: int, order: list[int], backward: dict[int, tuple[int, int]]) -> None:
        """The last reduction of a micro-batch keeps its buffer until the first one of the next, if there is a next."""
        if micro_step == 0:
            self._held_from = backward[-1][1] + 1
        elif not self._postponed and order:
            held_bytes = self._reduced_bytes[0] or self._reduced_bytes[order[0] + 1]  # the rest may have no gradients
            self._buffers.append(_Buffer(held_bytes, _BUFFER, self._held_from, backward[order[-1]][1]))

    def _run_rest(self, micro_step: int, begin: int, end: int, gradients: np.ndarray, last_reduction_bytes: float) -> None:
        """What is in no block stays gathered throughout and is reduced after the last operation of backward.

        That moment has no position of its own: it is counted at that operation, less what is freed by then.
        """
        storages = self._trace.storages
        self._buffers.append(_Buffer(self._gathered_bytes[0], _BUFFER, begin, end - 1))
        rest = gradients[self._block_of[storages.module[gradients]] == -1]
        freed_bytes = last_reduction_bytes + self._size_bytes[self._died == end].sum()
        freed_bytes -= self._size_bytes[rest[self._died[rest] == end]].sum()
        self._died[rest] = end
        if not self._reduces(micro_step):
            return
        kept = rest[self._gradient[rest]]
        shard_bytes = (storages.size_bytes[kept] * self._widened / self._ranks[kept]).sum()
        buffer_bytes = max(self._gathered_bytes[0], self._reduced_bytes[0] - freed_bytes)
        self._buffers.append(_Buffer(max(0.0, buffer_bytes - shard_bytes), _BUFFER, end, end))
