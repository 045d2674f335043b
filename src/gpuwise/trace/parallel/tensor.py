"""One of several tensor-parallel ranks: a step whose linear layers, and what lies between them, are divided.

Which rows are divided follows from the layers (gpuwise.trace.parallel.tensor_layers) and, in backward, from what each operation
uses last: an operation on parts gives a part. What does not grow with heads or hidden features, such as tables of angles, stays
whole. tests/unit/test_trace_tensor.py holds it against recordings of the program itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective
from gpuwise.trace.parallel.segments import FORWARD, segments_of
from gpuwise.trace.parallel.tensor_layers import Layer, LayerPair, SplitLayers, split_layers
from gpuwise.trace.parallel.tensor_parts import ALL, ALONG_K, ALONG_M, ALONG_N, WHOLE, divided, rows_by_position, tied_weight
from gpuwise.trace.parallel.tensor_traffic import traffic
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS, PHASES
from gpuwise.trace.trace import Trace

_GEMM, _COPY = KINDS.index("gemm"), KINDS.index("copy")
_RECOMPUTE, _BACKWARD = PHASES.index("recompute"), PHASES.index("backward")
_PARAMETER, _GRADIENT = CATEGORIES.index("parameter"), CATEGORIES.index("gradient")
_WRITTEN, _WORKSPACE, _M, _N, _K = (COLUMNS.index(name) for name in ("bytes_written", "workspace_bytes", "m", "n", "k"))
_TINY_BYTES = 1024  # states of random numbers and the like


def tensor_parallel(trace: Trace, strategy: Strategy, *, by_heads: bool = False) -> tuple[Trace, tuple[Collective, ...]]:
    """The step of one rank along tp, and the collectives of that axis.

    Arguments:
        trace: a step, or a stage of one, without adapters.
        by_heads: whether one layer that makes queries, keys and values lays them out head by head, as Megatron-LM's does, so
            that a rank attends with its own heads. False (default): its output is gathered.

    Raises InputError where heads, features or the sequence do not divide, UnsupportedError where no layers are recognised.
    """
    segments = segments_of(trace)
    layers = split_layers(trace, segments, strategy.mesh.tp, by_heads=by_heads)
    return _Rank(trace, strategy, segments, layers).result(), traffic(trace, strategy, layers)


class _Rank:
    """A step as it is divided: `way` for each position, `part` for each storage."""

    def __init__(self, trace: Trace, strategy: Strategy, segments: np.ndarray, layers: SplitLayers):
        self._trace, self._layers, self._segments = trace, layers, segments
        self._degree, self._parallelism = strategy.mesh.tp, strategy.parallelism
        self._way = np.full(len(trace.sequence), WHOLE, dtype=np.int64)
        self._part = np.zeros(len(trace.storages), dtype=bool)
        self._kind = trace.operations.kind[trace.sequence.operation]
        self._written = trace.operations.column("bytes_written")
        self._columns = {layer.module: pair for pair in layers.pairs for layer in pair.columns}
        self._rows = {pair.row.module: pair for pair in layers.pairs}
        if layers.head is not None:
            self._columns[layers.head.module] = LayerPair((layers.head,), layers.head, 0, not self._parallelism.loss_parallel)
        storages, length = trace.storages, len(trace.sequence)
        self._born = trace.once("born at", lambda: rows_by_position(storages.born, length))
        self._dying = trace.once("dying at", lambda: rows_by_position(storages.died, length))
        both = self._parallelism.sequence_parallel, self._parallelism.loss_parallel
        self._way, self._part = trace.once(("divided", layers, *both), self._divided)  # at any degree with these layers

    def _divided(self) -> tuple[np.ndarray, np.ndarray]:
        self._divide_parameters()
        sequence = self._trace.sequence
        for micro_step in (0, 1):
            of_batch = sequence.micro_step == micro_step
            for phase in (FORWARD, _RECOMPUTE):
                self._divide_forward(np.flatnonzero(of_batch & (sequence.phase == phase)))
            self._divide_inside(np.flatnonzero(of_batch & (sequence.phase == _RECOMPUTE)))
            self._divide_backward(np.flatnonzero(of_batch & (sequence.phase == _BACKWARD)))
        if self._parallelism.sequence_parallel:
            self._divide_residuals()
        return self._way, self._part

    def result(self) -> Trace:
        trace, storages = self._trace, self._trace.storages
        key = trace.sequence.operation.astype(np.int64) * (ALONG_K + 1) + self._way
        keys, row = np.unique(key, return_inverse=True)
        rows, ways = keys // (ALONG_K + 1), keys % (ALONG_K + 1)
        ops = trace.operations.take(rows)
        values = divided(ops.values, ways, self._degree)
        if self._parallelism.loss_parallel:
            # _log_softmax_backward_handler in torch/distributed/tensor/parallel/loss.py: two results of its size, not one.
            backward = np.array([name.startswith("aten._log_softmax_backward") for name in ops.name]) & (ways == ALL)
            values[backward, _WORKSPACE] += values[backward, _WRITTEN]
        part = self._part & (storages.size_bytes >= _TINY_BYTES)
        size_bytes = np.where(part, -(-storages.size_bytes // self._degree), storages.size_bytes)
        return replace(
            trace,
            header=replace(trace.header, gradient_shapes=self._shapes()),
            operations=replace(ops, values=values),
            sequence=replace(trace.sequence, operation=row.ravel().astype(np.int32)),
            storages=replace(storages, size_bytes=size_bytes),
        )

    def _divide_parameters(self) -> None:
        """Weights of split layers; of those split by rows not the bias, which is the smaller storage."""
        storages = self._trace.storages
        lasting = np.isin(storages.category, [_PARAMETER, _GRADIENT])
        for module in (*self._columns, *self._rows, self._layers.embedding):
            own = np.flatnonzero(lasting & (storages.module == module)).tolist() if module is not None else []
            largest = max((int(storages.size_bytes[i]) for i in own), default=0)
            for index in own:
                self._part[index] = module in self._columns or storages.size_bytes[index] == largest
        head = self._layers.head
        if head is not None and not (lasting & (storages.module == head.module)).any():
            self._part[tied_weight(self._trace, head, lasting)] = True

    def _divide_forward(self, positions: np.ndarray) -> None:
        """Between the first layer by columns and the one by rows all that is large enough, unless its input is gathered."""
        sequence = self._trace.sequence
        module_of, size_of = sequence.module[positions].tolist(), self._written[sequence.operation[positions]].tolist()
        spans: dict[int, tuple[LayerPair, int, int]] = {}
        for index, module in enumerate(module_of):
            pair = self._columns.get(module) or self._rows.get(module)
            if pair is not None and self._kind[positions[index]] == _GEMM:
                spans[id(pair)] = pair, spans.get(id(pair), (pair, index, index))[1], index
        self._divide_casts(positions)
        for pair, first, last in spans.values():
            if pair.row.module not in module_of[first : last + 1] and pair.row.module in self._rows:  # not computed again
                block = self._segments[positions[first]]
                last = int(np.flatnonzero(self._segments[positions] == block)[-1])
            least = self._least_bytes(pair)
            for index in range(first, last + 1):
                position, module = int(positions[index]), module_of[index]
                if module in self._columns or module in self._rows:
                    self._divide_product(position, module)
                elif not pair.gathered and size_of[index] >= least:
                    self._all(position)
        if self._layers.head is not None and self._parallelism.loss_parallel and len(positions):
            head = [i for i, module in enumerate(module_of) if module == self._layers.head.module]
            for index in range(head[-1] + 1 if head else len(positions), len(positions)):
                self._all(int(positions[index]))

    def _divide_inside(self, positions: np.ndarray) -> None:
        """What is computed again of a block alone, without a split layer, lies between two of them: attention's products."""
        module_of = self._trace.sequence.module
        with_layers = np.unique(self._segments[positions[np.isin(module_of[positions], [*self._columns, *self._rows])]])
        blocks = len(self._trace.header.blocks)
        gathered = any(pair.gathered for pair in self._layers.pairs)
        least = min((self._least_bytes(pair) for pair in self._layers.pairs), default=0.0)
        for position in positions.tolist():
            segment = self._segments[position]
            inside = 0 <= segment < blocks and segment not in with_layers and not gathered
            if inside and self._written[self._trace.sequence.operation[position]] >= least:
                self._all(position)

    def _divide_product(self, position: int, module: int) -> None:
        """The product of a split layer in forward."""
        if self._kind[position] == _GEMM:
            by_columns = module in self._columns
            self._way[position] = ALONG_N if by_columns else ALONG_K
            self._part[self._born[position]] = by_columns and not self._columns[module].gathered

    def _divide_casts(self, positions: np.ndarray) -> None:
        """Before its product, autocast casts a layer's input, if that needs it, its weight and its bias, in this order. The
        input of a layer split by columns is whole, and so is the bias of one split by rows."""
        casts: dict[int, list[int]] = {}
        storages = self._trace.storages
        for position in positions.tolist():
            module = int(self._trace.sequence.module[position])
            if (module in self._columns or module in self._rows) and self._kind[position] == _COPY:
                casts.setdefault(module, []).append(position)
        for module, own in casts.items():
            parameters = int(((storages.category == _PARAMETER) & (storages.module == module)).sum()) or 1
            by_columns, inputs = module in self._columns, max(0, len(own) - parameters)
            weight_and_bias = own[inputs:]
            for position in weight_and_bias if by_columns else [*own[:inputs], *weight_and_bias[:1]]:
                self._all(position)

    def _divide_backward(self, positions: np.ndarray) -> None:
        sequence = self._trace.sequence
        seen: set[int] = set()
        open_pair, waiting = None, 0  # the pair that backward is between the layers of, and products left of its columns
        head = self._layers.head if self._parallelism.loss_parallel else None
        for position in positions.tolist():
            module = int(sequence.module[position])
            if head is not None and self._segments[position] == len(self._trace.header.blocks):
                if module == head.module:
                    head = None
                else:
                    self._all(position)  # the loss along the vocabulary
                    continue
            if self._kind[position] == _GEMM and (module in self._columns or module in self._rows):
                by_columns = module in self._columns
                layer = self._layer(module)
                weight = self._makes_weight(position, layer) and module not in seen
                if weight:
                    seen.add(module)
                self._way[position] = (ALONG_M if weight else ALONG_K) if by_columns else ALONG_N
                self._part[self._born[position]] |= weight or not by_columns
                if not by_columns and open_pair is not self._rows[module]:
                    open_pair = self._rows[module]
                    waiting = 2 * len(open_pair.columns)
                waiting -= by_columns
                continue
            if module == self._layers.embedding:
                self._all(position)
                continue
            dying = [index for index in self._dying[position] if self._trace.storages.size_bytes[index] >= _TINY_BYTES]
            if any(self._part[index] for index in dying):
                self._all(position)
            elif open_pair is not None and not open_pair.gathered and waiting > 0 and module != 0:
                size_bytes = self._written[sequence.operation[position]]
                large = any(self._trace.storages.size_bytes[index] > size_bytes / 4 for index in dying)
                if not large and size_bytes >= self._least_bytes(open_pair):
                    self._all(position)

    def _least_bytes(self, pair: LayerPair) -> float:
        """What is smaller than this has neither heads nor hidden features: a half of keys is the smallest that has."""
        sizes = [self._written[self._trace.sequence.operation[column.position]] for column in pair.columns]
        return float(min(sizes)) / 4

    def _layer(self, module: int) -> Layer:
        pair = self._columns.get(module) or self._rows[module]
        return next((column for column in pair.columns if column.module == module), pair.row)

    def _makes_weight(self, position: int, layer: Layer) -> bool:
        """Whether a product of backward makes the gradient of the weight, whose sizes are outputs and inputs."""
        values = self._trace.operations.values[self._trace.sequence.operation[position]]
        return bool(values[_K] == layer.rows and sorted(values[[_M, _N]].tolist()) == sorted((layer.outputs, layer.inputs)))

    def _divide_residuals(self) -> None:
        """Norms and sums of the blocks are divided along the sequence; what is gathered for a layer is whole."""
        blocks = len(self._trace.header.blocks)
        inside = (self._segments >= 0) & (self._segments < blocks) & (self._way == WHOLE) & (self._kind != _GEMM)
        inside &= ~np.isin(self._trace.sequence.module, [*self._columns, *self._rows])
        for position in np.flatnonzero(inside).tolist():
            self._way[position] = ALL
            born = [index for index in self._born[position] if self._trace.storages.size_bytes[index] >= _TINY_BYTES]
            if self._trace.sequence.phase[position] == _BACKWARD:  # the gradient of a norm's weight stays whole
                born = sorted(born, key=lambda index: -int(self._trace.storages.size_bytes[index]))[:1]
            if not self._feeds_a_layer(position):
                self._part[born] = True

    def _feeds_a_layer(self, position: int) -> bool:
        """Whether the next position is a layer split by columns, for which the result is gathered."""
        after = position + 1
        return after < len(self._way) and int(self._trace.sequence.module[after]) in self._columns

    def _all(self, position: int) -> None:
        self._way[position] = ALL
        self._part[self._born[position]] = True

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        header, storages = self._trace.header, self._trace.storages
        gradients = np.flatnonzero(storages.category == _GRADIENT).tolist()
        if len(gradients) != len(header.gradient_shapes):
            return header.gradient_shapes
        shapes = []
        for shape, index in zip(header.gradient_shapes, gradients, strict=True):
            by_rows = int(storages.module[index]) in self._rows
            if self._part[index] and shape:
                dim = 1 if by_rows and len(shape) > 1 else 0
                shape = (*shape[:dim], -(-shape[dim] // self._degree), *shape[dim + 1 :])
            shapes.append(shape)
        return tuple(shapes)
