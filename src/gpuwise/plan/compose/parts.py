"""The rows of a few blocks at many micro-batches, from two compositions: every count is linear in the micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.host import calls as host_calls
from gpuwise.cost.kernels.alignment import unaligned
from gpuwise.errors import UnsupportedError
from gpuwise.plan.compose.shallow import SECTIONS, ShallowStep
from gpuwise.plan.compose.workload import Work
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective
from gpuwise.trace.parallel.context import context_parallel
from gpuwise.trace.parallel.experts import expert_parallel
from gpuwise.trace.parallel.segments import segments_of
from gpuwise.trace.parallel.tensor import tensor_rank
from gpuwise.trace.parallel.tensor_layers import SplitLayers, split_layers
from gpuwise.trace.parallel.tensor_traffic import traffic
from gpuwise.trace.tables import KINDS, PHASES, Operations
from gpuwise.trace.trace import Trace

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")  # along tp
# Where ranks exchange along tp: before the blocks, in each of them, behind them, and at the ends of each rank's stack.
EXCHANGES = ("before", "block", "after", "ends")
BLOCK_OPERATIONS = ("all_gather", "reduce_scatter", "all_to_all")  # along cp or ep, in blocks alone
MICRO_STEPS = 2  # the first micro-batch makes gradients, each further one adds to them
CELLS = (len(SECTIONS), len(PHASES) - 1, MICRO_STEPS)


@dataclass(frozen=True)
class Composed:
    """A few blocks of a tensor-parallel rank at one micro-batch.

    Attributes:
        shallow: the blocks on one device.
        trace: of the rank.
        micro_batch: of both.
        payload_bytes, calls: along tp in one micro-batch, by EXCHANGES and OPERATIONS.
        block_bytes, block_calls: of each block along cp or ep in one micro-batch, by BLOCK_OPERATIONS.
    """

    shallow: ShallowStep
    trace: Trace
    micro_batch: int
    payload_bytes: np.ndarray
    calls: np.ndarray
    block_bytes: np.ndarray
    block_calls: np.ndarray


def composed(shallow: ShallowStep, strategy: Strategy, *, by_heads: bool = False) -> Composed:
    """A few blocks on one device as one of the ranks of tp, cp and ep runs them.

    Arguments:
        shallow: on sequences divided by strategy.mesh.cp.
        by_heads: as for gpuwise.trace.parallel.tensor.tensor_parallel.

    Raises InputError where heads or features do not divide, UnsupportedError for blocks that are not recognised.
    """
    trace, shape, once = shallow.trace, (len(EXCHANGES), len(OPERATIONS)), strategy.but(accumulation=1)
    payload_bytes, calls, moved = np.zeros(shape), np.zeros(shape), tuple[Collective, ...]()
    if strategy.mesh.ep > 1:
        trace, moved = expert_parallel(trace, once)
    if strategy.mesh.tp > 1:
        layers = split_layers(trace, strategy.mesh.tp, by_heads=by_heads)
        payload_bytes, calls = _exchanges(trace, once, layers)
        trace = tensor_rank(trace, strategy, layers)
    if strategy.mesh.cp > 1:
        trace, moved = context_parallel(trace, once)
    of_block = np.array(_counted(moved, BLOCK_OPERATIONS)) / len(trace.header.blocks)
    micro_batch = trace.header.sizes["micro_batch"]
    return Composed(shallow, trace, micro_batch, payload_bytes, calls, of_block[:, 0], of_block[:, 1])


def _exchanges(trace: Trace, strategy: Strategy, layers: SplitLayers) -> tuple[np.ndarray, np.ndarray]:
    nothing = SplitLayers((), None, None)
    first = segments_of(trace) == 0
    inside = set(trace.sequence.module[first].tolist())
    of_first = tuple(pair for pair in layers.pairs if pair.row.module in inside)
    one, two = (traffic(trace, strategy, replace(nothing, pairs=of_first * times)) for times in (1, 2))
    before = traffic(trace, strategy, replace(nothing, embedding=layers.embedding))
    after = traffic(trace, strategy, replace(nothing, head=layers.head))
    counted = np.array([_counted(collectives, OPERATIONS) for collectives in (before, one, after, two)])
    block = counted[3] - counted[1]
    counted[3] = counted[1] - block
    counted[1] = block
    return counted[..., 0], counted[..., 1]


def _counted(collectives: Sequence[Collective], operations: Sequence[str]) -> list[list[float]]:
    """Bytes and calls of each operation."""
    by_operation = {
        collective.operation: [float(collective.payload_bytes), float(collective.calls)] for collective in collectives
    }
    return [by_operation.get(operation, [0.0, 0.0]) for operation in operations]


@dataclass(frozen=True)
class Parts:
    """The parts of a step at several micro-batches, by CELLS: section, phase and micro-step.

    Attributes:
        work: their kernels; a cell of it is one of CELLS.
        calls, kernels: that the host launches, calls as gpuwise.cost.host.calls counts them. Shape CELLS.
    """

    work: Work
    calls: np.ndarray
    kernels: np.ndarray

    def in_fp16(self) -> Parts:
        """The same where bf16 was recorded and fp16 runs."""
        tables = tuple(replace(table, operations=table.operations.in_fp16()) for table in self.work.tables)
        return replace(self, work=replace(self.work, tables=tables))


def parts_of(low: Composed, high: Composed, micro_batches: Sequence[int]) -> Parts:
    """The parts of a step. low, high: the parts at two micro-batches, between which counts are linear.

    Raises UnsupportedError where the two run different operations, as 4-bit products of few and of many rows do.
    """
    if low.trace.operations.values.shape != high.trace.operations.values.shape:
        raise UnsupportedError(
            f"micro-batches of {low.micro_batch} and {high.micro_batch} run different operations, and are not composed."
        )
    sequence = low.trace.sequence
    cell, cells = cells_of(low), int(np.prod(CELLS))
    inside = cell >= 0

    def by_cell(weights: np.ndarray) -> np.ndarray:
        return np.bincount(cell[inside], weights=weights[inside], minlength=cells).reshape(CELLS)

    kernels = by_cell(low.trace.operations.column("kernels")[sequence.operation].astype(np.float64))
    calls = by_cell(host_calls(low.trace))
    values = np.rint(along(low, high, micro_batches, lambda one: one.trace.operations.values)).astype(np.int64)
    tables = [_at(low.trace, micro_batch, of_size) for micro_batch, of_size in zip(micro_batches, values, strict=True)]
    if not (_depends_on_others(low.trace) or _depends_on_others(high.trace)):
        tables = [replace(low.trace, operations=_stacked([table.operations for table in tables]))]
    cell = np.where(low.trace.uploads, -1, cell)  # the host launches them, and the link takes their time
    return Parts(Work.of(tables, sequence.operation, cell, sizes=len(micro_batches), cells=cells), calls, kernels)


def _at(trace: Trace, micro_batch: int, values: np.ndarray) -> Trace:
    """The parts at a micro-batch. values: of the operations."""
    header = replace(trace.header, sizes={**trace.header.sizes, "micro_batch": micro_batch})
    return replace(trace, header=header, operations=replace(trace.operations, values=values))


def _depends_on_others(trace: Trace) -> bool:
    """Whether the price of an operation may depend on others of its step: of products with odd rows, and of convolutions."""
    return bool(unaligned(trace).any() or (trace.operations.kind == KINDS.index("conv")).any())


def _stacked(operations: Sequence[Operations]) -> Operations:
    """The operations of several steps in one table, one after the other."""
    first, count = operations[0], len(operations)
    return Operations(
        name=first.name * count,
        kind=np.tile(first.kind, count),
        dtype=first.dtype * count,
        values=np.concatenate([one.values for one in operations]),
        group=np.tile(first.group, count),
        channels_last=np.tile(first.channels_last, count),
    )


def cells_of(one: Composed) -> np.ndarray:
    """The cell of each position, or -1. Shape (positions,)."""
    sequence = one.trace.sequence
    sections = one.shallow.sections(one.trace)
    cell = (sections * CELLS[1] + sequence.phase) * CELLS[2] + sequence.micro_step
    return np.where((sections < 0) | (sequence.phase >= CELLS[1]), -1, cell)


def along(low: Composed, high: Composed, micro_batches: Sequence[int], of: Callable[[Composed], np.ndarray]) -> np.ndarray:
    """A count at many micro-batches, from those at two. Shape (micro-batches, *count.shape)."""
    first = np.asarray(of(low), dtype=np.float64)
    sizes = np.asarray(micro_batches, dtype=np.float64) - low.micro_batch
    if high.micro_batch == low.micro_batch:
        return np.stack([first] * len(sizes))
    shares = sizes / (high.micro_batch - low.micro_batch)
    result: np.ndarray = first + shares.reshape(-1, *[1] * first.ndim) * (of(high) - first)
    return result
