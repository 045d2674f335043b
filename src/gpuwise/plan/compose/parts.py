"""The rows of a few blocks at many micro-batches, from two compositions: every count is linear in the micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.types import Chip
from gpuwise.plan.compose.shallow import SECTIONS, ShallowStep, shallow_step
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective
from gpuwise.trace.parallel.segments import segments_of
from gpuwise.trace.parallel.tensor import tensor_parallel
from gpuwise.trace.parallel.tensor_layers import SplitLayers, split_layers
from gpuwise.trace.parallel.tensor_traffic import traffic
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")  # along tp
# Where ranks exchange along tp: before the blocks, in each of them, behind them, and at the ends of each rank's stack.
EXCHANGES = ("before", "block", "after", "ends")
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
    """

    shallow: ShallowStep
    trace: Trace
    micro_batch: int
    payload_bytes: np.ndarray
    calls: np.ndarray


def composed(whole: Trace, strategy: Strategy) -> Composed:
    """The few blocks of a step on one device as one of strategy.mesh.tp ranks runs them.

    Raises InputError where heads or features do not divide, UnsupportedError for blocks that differ or are not recognised.
    """
    shallow = shallow_step(whole)
    trace, shape = shallow.trace, (len(EXCHANGES), len(OPERATIONS))
    payload_bytes, calls = np.zeros(shape), np.zeros(shape)
    if strategy.mesh.tp > 1:
        layers = split_layers(trace, segments_of(trace), strategy.mesh.tp)
        payload_bytes, calls = _exchanges(trace, strategy.but(accumulation=1), layers)
        trace, _ = tensor_parallel(trace, strategy)
    return Composed(shallow, trace, whole.header.sizes["micro_batch"], payload_bytes, calls)


def _exchanges(trace: Trace, strategy: Strategy, layers: SplitLayers) -> tuple[np.ndarray, np.ndarray]:
    nothing = SplitLayers((), None, None)
    first = segments_of(trace) == 0
    inside = set(trace.sequence.module[first].tolist())
    of_first = tuple(pair for pair in layers.pairs if pair.row.module in inside)
    one, two = (traffic(trace, strategy, replace(nothing, pairs=of_first * times)) for times in (1, 2))
    before = traffic(trace, strategy, replace(nothing, embedding=layers.embedding))
    after = traffic(trace, strategy, replace(nothing, head=layers.head))
    counted = np.array([_counted(collectives) for collectives in (before, one, after, two)])
    block = counted[3] - counted[1]
    counted[3] = counted[1] - block
    counted[1] = block
    return counted[..., 0], counted[..., 1]


def _counted(collectives: Sequence[Collective]) -> list[list[float]]:
    by_operation = {
        collective.operation: [float(collective.payload_bytes), float(collective.calls)] for collective in collectives
    }
    return [by_operation.get(operation, [0.0, 0.0]) for operation in OPERATIONS]


@dataclass(frozen=True)
class PricedParts:
    """The parts of a step at several micro-batches, by CELLS: section, phase and micro-step.

    Attributes:
        device_s: of their kernels. Shape (micro-batches, *CELLS).
        calls, kernels: that the host launches. Shape CELLS.
    """

    device_s: np.ndarray
    calls: np.ndarray
    kernels: np.ndarray


def priced_parts(
    low: Composed, high: Composed, micro_batches: Sequence[int], *, chip: Chip, parameters: Parameters
) -> PricedParts:
    """The seconds of each part. low, high: the parts at two micro-batches, between which counts are linear."""
    sequence = low.trace.sequence
    cell = cells_of(low)
    inside = cell >= 0

    def by_cell(weights: np.ndarray) -> np.ndarray:
        return np.bincount(cell[inside], weights=weights[inside], minlength=int(np.prod(CELLS))).reshape(CELLS)

    kernels = by_cell(low.trace.operations.column("kernels")[sequence.operation].astype(np.float64))
    calls = by_cell(np.ones(len(sequence)))
    device_s = []
    for size in micro_batches:
        values = np.rint(between(low, high, size, lambda one: one.trace.operations.values)).astype(np.int64)
        header = replace(low.trace.header, sizes={**low.trace.header.sizes, "micro_batch": size})
        trace = replace(low.trace, header=header, operations=replace(low.trace.operations, values=values))
        device_s.append(by_cell(kernel_times(trace, chip, parameters).device_s[sequence.operation]))
    return PricedParts(np.stack(device_s), calls, kernels)


def cells_of(one: Composed) -> np.ndarray:
    """The cell of each position, or -1. Shape (positions,)."""
    sequence = one.trace.sequence
    sections = one.shallow.sections(one.trace)
    cell = (sections * CELLS[1] + sequence.phase) * CELLS[2] + sequence.micro_step
    return np.where((sections < 0) | (sequence.phase >= CELLS[1]), -1, cell)


def between(low: Composed, high: Composed, micro_batch: int, of: Callable[[Composed], np.ndarray]) -> np.ndarray:
    """A count at a micro-batch, from those at two."""
    first = of(low).astype(np.float64)
    if high.micro_batch == low.micro_batch:
        return first
    share = (micro_batch - low.micro_batch) / (high.micro_batch - low.micro_batch)
    result: np.ndarray = first + share * (of(high) - first)
    return result
