"""The collectives of tensor parallelism in one step, as gpuwise.runtime.parallel's styles make them."""

from __future__ import annotations

from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective, group_along
from gpuwise.trace.parallel.tensor_layers import Layer, SplitLayers
from gpuwise.trace.parallel.variant import is_sharded
from gpuwise.trace.tables import KINDS, PHASES
from gpuwise.trace.trace import Trace


def traffic(trace: Trace, strategy: Strategy, layers: SplitLayers) -> tuple[Collective, ...]:
    """Along tp: sums behind layers split by rows, and in backward sums of what layers split by columns send back.

    With sequence parallelism the former are scattered and the inputs of the latter gathered. Layers that are computed again
    repeat what their forward exchanges; the last of a block is not.
    """
    repeated = _repeated(trace)
    sequence = strategy.parallelism.sequence_parallel
    # Under autocast the inputs of layers are fp32 and so are their gradients; shards compute in half precision throughout.
    widened = 2 if strategy.precision.startswith("amp-") and not is_sharded(strategy) else 1
    counted: dict[str, list[int]] = {"all_reduce": [0, 0], "all_gather": [0, 0], "reduce_scatter": [0, 0]}

    def add(operation: str, size_bytes: int, calls: int = 1) -> None:
        counted[operation][0] += size_bytes * calls
        counted[operation][1] += calls

    for pair in layers.pairs:
        size_bytes = _output_bytes(trace, pair.row)
        passes, sums = 1 + (pair.columns[0].module in repeated), 1 + (pair.row.module in repeated)
        add("reduce_scatter" if sequence else "all_reduce", size_bytes, sums)
        if sequence:
            add("all_gather", size_bytes, passes + 1)  # the input, and in backward the gradient of the output
        if pair.gathered:
            add("all_gather", sum(_output_bytes(trace, column) for column in pair.columns), passes)
        add("reduce_scatter" if sequence and len(pair.columns) == 1 else "all_reduce", widened * size_bytes, len(pair.columns))
    if sequence and layers.pairs:
        add("all_gather", _output_bytes(trace, layers.pairs[0].row), 2)  # at the ends of the stack: its output, and a gradient
    if layers.embedding is not None:
        add("all_reduce", _embedding_bytes(trace, layers.embedding))
    if layers.head is not None:
        add("all_reduce", widened * layers.head.rows * layers.head.inputs * _element_bytes(trace, layers.head))
        if strategy.parallelism.loss_parallel:
            add("all_reduce", layers.head.rows * 4, 3)  # the largest logit, the sum of exponentials, the label's logit
        else:
            add("all_gather", _output_bytes(trace, layers.head))
    group, micro_batches = group_along(strategy.mesh, "tp"), strategy.accumulation
    return tuple(
        Collective(operation, group, size_bytes * micro_batches, calls * micro_batches)
        for operation, (size_bytes, calls) in counted.items()
        if calls
    )


def _repeated(trace: Trace) -> set[int]:
    """Modules whose products are computed again in backward."""
    sequence = trace.sequence
    product = trace.operations.kind[sequence.operation] == KINDS.index("gemm")
    return set(sequence.module[product & (sequence.phase == PHASES.index("recompute"))].tolist())


def _output_bytes(trace: Trace, layer: Layer) -> int:
    return int(trace.operations.column("bytes_written")[trace.sequence.operation[layer.position]])


def _element_bytes(trace: Trace, layer: Layer) -> int:
    return max(1, _output_bytes(trace, layer) // max(1, layer.rows * layer.outputs))


def _embedding_bytes(trace: Trace, module: int) -> int:
    sequence = trace.sequence
    first = (sequence.module == module) & (sequence.phase == PHASES.index("forward")) & (sequence.micro_step == 0)
    position = int(first.argmax())
    return int(trace.operations.column("bytes_written")[sequence.operation[position]])
