"""One pipeline rank's step: the blocks of its stages, its tensors in flight, and what it sends and receives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.strategy.pipeline import stages_of_rank
from gpuwise.trace.parallel.balance import balanced
from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.parallel.communication import Collective, group_along
from gpuwise.trace.parallel.pipeline import in_flight
from gpuwise.trace.parallel.segments import FIRST, FORWARD, UPDATE, segments_of, select
from gpuwise.trace.parallel.tied import with_sums_apart
from gpuwise.trace.tables import BEFORE, CATEGORIES, KINDS, PHASES, Storages
from gpuwise.trace.trace import Trace

_BUFFER, _INPUT, _PARAMETER, _GRADIENT = (
    CATEGORIES.index(name) for name in ("communication_buffer", "input", "parameter", "gradient")
)
_GEMM, _EMBEDDING = KINDS.index("gemm"), KINDS.index("embedding")
_BACKWARD = [PHASES.index(name) for name in ("backward", "recompute")]


def first_blocks(trace: Trace, segments: np.ndarray, stages: int) -> tuple[int, ...]:
    """The first block of each stage: stages with nearly equal operations in forward."""
    forward = (trace.sequence.phase == FORWARD) & (trace.sequence.micro_step == 0)
    blocks = len(trace.header.blocks)
    of_block = np.clip(segments[forward], 0, blocks - 1)  # embeddings with the first block, the head with the last
    flops = trace.operations.model_flops[trace.sequence.operation[forward]].astype(np.float64)
    costs = np.bincount(of_block, weights=flops, minlength=blocks)
    return balanced([max(1, int(cost)) for cost in costs], stages)


def stage_starts(whole: Trace, strategy: Strategy) -> tuple[int, ...]:
    """The first block of each stage of a strategy, by the operations of a step on whole sequences."""
    stages = strategy.mesh.pp * strategy.parallelism.stages_per_rank
    starts: tuple[int, ...] = whole.once(("stages", stages), lambda: first_blocks(whole, segments_of(whole), stages))
    return starts


def stage_step(
    trace: Trace, strategy: Strategy, rank: int, *, starts: tuple[int, ...] | None = None
) -> tuple[Trace, tuple[Collective, ...], int]:
    """The step of one rank of a pipeline, its sends, and the bytes that it receives in a micro-batch.

    Arguments:
        trace: a whole step.
        rank: the rank's position along pp.
        starts: of stage_starts, where the step is one on parts of sequences; None (default) takes the step's own.

    The step has one micro-batch in flight; with_in_flight adds the others.
    """
    segments, blocks = segments_of(trace), len(trace.header.blocks)
    stages = strategy.mesh.pp * strategy.parallelism.stages_per_rank
    starts = (*(starts or stage_starts(trace, strategy)), blocks)
    own_stages = stages_of_rank(strategy.parallelism, ranks=strategy.mesh.pp, rank=rank)
    own = {block for stage in own_stages for block in range(starts[stage], starts[stage + 1])}
    ends = ({FIRST} if 0 in own_stages else set()) | ({blocks} if stages - 1 in own_stages else set())
    if len(ends) < 2:  # of a tied weight's gradient it has one part at most
        trace = with_sums_apart(trace)
    return _Stage(trace, strategy, segments, np.array(sorted(own | ends)), len(own_stages)).step()


def parts_of_tied_gradient(trace: Trace) -> np.ndarray:
    """Storages of a whole step that add up to the gradient of a weight that its first stage shares with its last one. Shape
    (storages,).

    Arguments:
        trace: of with_sums_apart.
    """
    stage = _Stage(trace, trace.header.strategy, segments_of(trace), np.array([FIRST, 0]), 1)
    return stage.summed()


class _Stage:
    """A choice of segments of a step.

    Arguments:
        segments: of the positions.
        own: the segments that the rank runs.
        stages: how many stages they are.
    """

    def __init__(self, trace: Trace, strategy: Strategy, segments: np.ndarray, own: np.ndarray, stages: int):
        self._trace, self._strategy, self._segments, self._own, self._stages = trace, strategy, segments, own, stages
        self._positions = np.isin(segments, own) | (segments == UPDATE)

    def step(self) -> tuple[Trace, tuple[Collective, ...], int]:
        received = self._received()
        trace = self._trace
        summed = self._summed(received)
        rows = self._lives() & ~received & ~summed
        ends = self._extended(trace.storages)
        step = select(replace(trace, storages=ends), self._positions, rows)
        blocks = tuple(path for number, path in enumerate(trace.header.blocks) if number in self._own)
        step = replace(step, header=replace(step.header, blocks=blocks))
        received_bytes = int(trace.storages.size_bytes[received & ~summed & self._of_first_micro_batch()].sum())
        return step, self._sends(), received_bytes

    def summed(self) -> np.ndarray:
        """Storages of the parts of a tied weight's gradient."""
        return self._summed(self._received())

    def _of_first_micro_batch(self) -> np.ndarray:
        born = np.maximum(self._trace.storages.born, 0)
        mask: np.ndarray = self._trace.sequence.micro_step[born] == 0
        return mask

    def _lives(self) -> np.ndarray:
        """Storages of this rank: those born at its positions, its parameters and their state, and its inputs."""
        trace, storages = self._trace, self._trace.storages
        segment = self._segment_of_modules()[storages.module]
        lasting = np.isin(segment, self._own) | (storages.category == _INPUT)
        if len(trace.header.blocks) in self._own:
            lasting |= np.isin(storages.module, self._tied()) & np.isin(storages.category, [_PARAMETER, _GRADIENT])
        born_here = self._positions[np.maximum(storages.born, 0)]
        mask: np.ndarray = np.where((storages.born < 0) | (storages.category == _INPUT), lasting, born_here)
        mask |= lasting & (storages.category == _GRADIENT)  # of a tied weight: both stages have one
        edges = len(trace.header.blocks) in self._own or FIRST in self._own
        return mask if edges else mask & (storages.category != _INPUT)

    def _segment_of_modules(self) -> np.ndarray:
        """The segment of each module: its block, else the first in which it runs in forward; UPDATE of others."""
        trace = self._trace
        segment = block_of_modules(trace.modules, trace.header.blocks).copy()
        outside = segment < 0
        segment[outside] = UPDATE
        positions = np.flatnonzero((trace.sequence.phase == FORWARD) & (trace.sequence.micro_step == 0))
        modules, first = np.unique(trace.sequence.module[positions], return_index=True)
        seen = outside[modules]
        segment[modules[seen]] = self._segments[positions[first[seen]]]
        return segment

    def _tied(self) -> list[int]:
        """The module of the largest embedding, if the model predicts with its weight: the last layer has none of its own."""
        trace, storages = self._trace, self._trace.storages
        kind = trace.operations.kind[trace.sequence.operation]
        forward = (trace.sequence.phase == FORWARD) & (trace.sequence.micro_step == 0)
        last = np.flatnonzero(forward & (kind == _GEMM) & (self._segments == len(trace.header.blocks)))
        tables = trace.sequence.module[forward & (kind == _EMBEDDING) & (self._segments == FIRST)].tolist()
        parameter = storages.category == _PARAMETER
        if not len(last) or not tables or (parameter & (storages.module == trace.sequence.module[last[-1]])).any():
            return []
        return [
            max(tables, key=lambda module: int(storages.size_bytes[parameter & (storages.module == module)].max(initial=0)))
        ]

    def _received(self) -> np.ndarray:
        """Storages that another rank makes and this one uses last: activations on their way in, and gradients."""
        storages, length = self._trace.storages, len(self._trace.sequence)
        elsewhere = (storages.born >= 0) & ~self._positions[np.maximum(storages.born, 0)]
        inside = storages.died < length
        used = inside & self._positions[np.minimum(storages.died, length - 1)]
        in_update = self._segments[np.minimum(storages.died, length - 1)] == UPDATE
        mask: np.ndarray = elsewhere & used & ~in_update & (storages.category != _INPUT) & ~self._casts()
        return mask

    def _casts(self) -> np.ndarray:
        """Storages of casts in forward. Autocast keeps those of weights to its end, where another rank's stage may be."""
        operations, sequence = self._trace.operations, self._trace.sequence
        casts = np.array([name.startswith("aten._to_copy") for name in operations.name])
        born = np.maximum(self._trace.storages.born, 0)
        mask: np.ndarray = casts[sequence.operation[born]] & (sequence.phase[born] == FORWARD)
        return mask

    def _summed(self, received: np.ndarray) -> np.ndarray:
        """Storages of which one device adds up the gradient of a tied weight: each of its two stages has its own part."""
        storages, length = self._trace.storages, len(self._trace.sequence)
        died = np.minimum(storages.died, length - 1)
        of_tied = received & np.isin(self._trace.sequence.module[died], self._tied())
        mask: np.ndarray = np.isin(died, died[of_tied]) & (storages.born >= 0)
        return mask

    def _extended(self, storages: Storages) -> Storages:
        """What this rank makes in forward and another one uses last stays until this rank's backward begins: the schedule
        keeps the output of a stage."""
        length = len(self._trace.sequence)
        died = np.minimum(storages.died, length - 1)
        born = np.maximum(storages.born, 0)
        sent = (storages.born >= 0) & self._positions[born] & (storages.died < length) & ~self._positions[died]
        sent &= self._trace.sequence.phase[born] == FORWARD
        sent &= ~self._casts()
        micro_step = self._trace.sequence.micro_step
        backward = self._positions & np.isin(self._trace.sequence.phase, _BACKWARD)
        ends = storages.died.copy()
        for step in (0, 1):
            begins = np.flatnonzero(backward & (micro_step == step))
            if len(begins):
                rows = sent & (micro_step[born] == step) & (died < begins[0])
                ends[rows] = begins[0]
        return replace(storages, died=ends)

    def _sends(self) -> tuple[Collective, ...]:
        """Activations and gradients between neighbours. Sending and receiving go on at the same time: one direction counts."""
        micro_batches, group = self._strategy.accumulation, group_along(self._strategy.mesh, "pp")
        sequence = self._trace.sequence
        forward = np.flatnonzero((sequence.phase == FORWARD) & (sequence.micro_step == 0) & (self._segments == 0))
        written = self._trace.operations.column("bytes_written")
        size_bytes = int(written[sequence.operation[forward[-1]]])  # what a block passes on
        calls = 2 * self._stages * micro_batches
        return (Collective("send", group, size_bytes * calls, calls),)


def with_in_flight(step: Trace, strategy: Strategy, rank: int, *, received_bytes: int) -> Trace:
    """A rank's step with the activations of all micro-batches in flight, and the buffers of what it receives.

    Arguments:
        received_bytes: of a micro-batch. Buffers are allocated once, for all micro-batches of a step
            (torch/distributed/pipelining/stage.py, PyTorch 2.13).
    """
    first = in_flight(strategy, rank)
    later = max(1, min(first, strategy.accumulation - 1))  # from the second backward pass on
    sequence, storages = step.sequence, step.storages
    length = len(sequence)
    born, died = np.maximum(storages.born, 0), np.minimum(storages.died, length - 1)
    saved = (storages.born >= 0) & (sequence.phase[born] == FORWARD) & (sequence.micro_step[born] == 0)
    saved &= (storages.died < length) & np.isin(sequence.phase[died], _BACKWARD)
    rows = np.flatnonzero(saved) if first > 1 else np.flatnonzero(saved)[:0]
    backward = np.isin(sequence.phase, _BACKWARD)
    ends = [int(np.flatnonzero(of)[-1]) if of.any() else length - 1 for of in (backward & (sequence.micro_step == 0), backward)]
    more = [np.ceil(storages.size_bytes[rows] * number).astype(np.int64) for number in (first - later, later - 1)]
    died_with = np.repeat(ends, len(rows))
    rows = np.concatenate([rows, rows])
    buffers = [received_bytes * strategy.accumulation] if received_bytes else []
    count = len(rows) + len(buffers)
    return replace(
        step,
        storages=Storages(
            np.concatenate([storages.size_bytes, *more, np.array(buffers, dtype=np.int64)]),
            np.concatenate([storages.category, storages.category[rows], np.full(len(buffers), _BUFFER)]).astype(np.int8),
            np.concatenate([storages.module, storages.module[rows], np.zeros(len(buffers))]).astype(storages.module.dtype),
            np.concatenate([storages.born, np.zeros(len(rows)), np.full(len(buffers), BEFORE)]).astype(storages.born.dtype),
            np.concatenate([storages.died, died_with, np.full(len(buffers), length)]).astype(storages.died.dtype),
            np.concatenate([storages.stream, np.zeros(count)]).astype(storages.stream.dtype),
        ),
    )
