"""How the operations and storages of a step are divided among tensor-parallel ranks.

Which rows are divided follows from the layers (gpuwise.trace.parallel.tensor_layers) and, in backward, from what each operation
uses last: an operation on parts gives a part. What does not grow with heads or hidden features, such as tables of angles, stays
whole. tests/unit/test_trace_ranks.py holds it against recordings of the program itself.
"""

from __future__ import annotations

import numpy as np

from gpuwise.strategy import Parallelism
from gpuwise.trace.parallel.segments import FORWARD, segments_of
from gpuwise.trace.parallel.tensor_layers import Layer, LayerPair, SplitLayers
from gpuwise.trace.parallel.tensor_parts import ALL, ALONG_K, ALONG_M, ALONG_N, WHOLE, rows_by_position, tied_weight
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS, PHASES
from gpuwise.trace.trace import Trace

_GEMM, _COPY = KINDS.index("gemm"), KINDS.index("copy")
_RECOMPUTE, _BACKWARD = PHASES.index("recompute"), PHASES.index("backward")
_PARAMETER, _GRADIENT = CATEGORIES.index("parameter"), CATEGORIES.index("gradient")
_M, _N, _K = (COLUMNS.index(name) for name in ("m", "n", "k"))
TINY_BYTES = 1024  # states of random numbers and the like


def columns_of(layers: SplitLayers, *, loss_parallel: bool) -> dict[int, LayerPair]:
    """The pairs of layers split by columns, by the module of each; of the head, a pair of its own."""
    columns = {layer.module: pair for pair in layers.pairs for layer in pair.columns}
    if layers.head is not None:
        columns[layers.head.module] = LayerPair((layers.head,), layers.head, 0, not loss_parallel)
    return columns


def divide(trace: Trace, layers: SplitLayers, parallelism: Parallelism) -> tuple[np.ndarray, np.ndarray]:
    """How each position is divided, and which storages are: the same at any degree with these layers.

    Shapes (positions,), of WHOLE, ALL and so on; and (storages,).
    """
    key = ("divided", layers, parallelism.sequence_parallel, parallelism.loss_parallel)
    return trace.once(key, lambda: _Division(trace, layers, parallelism).result())


class _Division:
    """A step as it is divided: `way` for each position, `part` for each storage. Lists, as each row is looked at alone."""

    def __init__(self, trace: Trace, layers: SplitLayers, parallelism: Parallelism):
        sequence, storages = trace.sequence, trace.storages
        self._trace, self._layers, self._parallelism = trace, layers, parallelism
        self._way: list[int] = [WHOLE] * len(sequence)
        self._part: list[bool] = [False] * len(storages)
        self._segments = segments_of(trace)
        self._segment_of: list[int] = self._segments.tolist()
        self._module_of: list[int] = sequence.module.tolist()
        self._kind_of: list[int] = trace.operations.kind[sequence.operation].tolist()
        self._written: list[int] = trace.operations.column("bytes_written")[sequence.operation].tolist()
        self._size: list[int] = storages.size_bytes.tolist()
        self._columns = columns_of(layers, loss_parallel=parallelism.loss_parallel)
        self._rows = {pair.row.module: pair for pair in layers.pairs}
        self._born = trace.once("born at", lambda: rows_by_position(storages.born, len(sequence)))
        self._dying = trace.once("dying at", lambda: rows_by_position(storages.died, len(sequence)))

    def result(self) -> tuple[np.ndarray, np.ndarray]:
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
        return np.array(self._way, dtype=np.int64), np.array(self._part, dtype=bool)

    def _divide_parameters(self) -> None:
        """Weights of split layers; of those split by rows not the bias, which is the smaller storage."""
        storages = self._trace.storages
        lasting = np.isin(storages.category, [_PARAMETER, _GRADIENT])
        for module in (*self._columns, *self._rows, self._layers.embedding):
            own = np.flatnonzero(lasting & (storages.module == module)).tolist() if module is not None else []
            largest = max((self._size[i] for i in own), default=0)
            for index in own:
                self._part[index] = module in self._columns or self._size[index] == largest
        head = self._layers.head
        if head is not None and not (lasting & (storages.module == head.module)).any():
            self._set_parts(tied_weight(self._trace, head, lasting))

    def _divide_forward(self, positions: np.ndarray) -> None:
        """Between the first layer by columns and the one by rows all that is large enough, unless its input is gathered."""
        of_phase: list[int] = positions.tolist()
        module_of = [self._module_of[position] for position in of_phase]
        spans: dict[int, tuple[LayerPair, int, int]] = {}
        for index, module in enumerate(module_of):
            pair = self._columns.get(module) or self._rows.get(module)
            if pair is not None and self._kind_of[of_phase[index]] == _GEMM:
                spans[id(pair)] = pair, spans.get(id(pair), (pair, index, index))[1], index
        self._divide_casts(of_phase)
        for pair, first, last in spans.values():
            if pair.row.module not in module_of[first : last + 1] and pair.row.module in self._rows:  # not computed again
                block = self._segment_of[of_phase[first]]
                last = int(np.flatnonzero(self._segments[positions] == block)[-1])
            least = self._least_bytes(pair)
            for index in range(first, last + 1):
                position, module = of_phase[index], module_of[index]
                if module in self._columns or module in self._rows:
                    self._divide_product(position, module)
                elif not pair.gathered and self._written[position] >= least:
                    self._all(position)
        if self._layers.head is not None and self._parallelism.loss_parallel and of_phase:
            head = [i for i, module in enumerate(module_of) if module == self._layers.head.module]
            for position in of_phase[head[-1] + 1 if head else len(of_phase) :]:
                self._all(position)

    def _divide_inside(self, positions: np.ndarray) -> None:
        """What is computed again of a block alone, without a split layer, lies between two of them: attention's products."""
        module_of = self._trace.sequence.module
        with_layers = set(self._segments[positions[np.isin(module_of[positions], [*self._columns, *self._rows])]].tolist())
        blocks = len(self._trace.header.blocks)
        gathered = any(pair.gathered for pair in self._layers.pairs)
        least = min((self._least_bytes(pair) for pair in self._layers.pairs), default=0.0)
        for position in positions.tolist():
            segment = self._segment_of[position]
            inside = 0 <= segment < blocks and segment not in with_layers and not gathered
            if inside and self._written[position] >= least:
                self._all(position)

    def _divide_product(self, position: int, module: int) -> None:
        """The product of a split layer in forward."""
        if self._kind_of[position] == _GEMM:
            by_columns = module in self._columns
            self._way[position] = ALONG_N if by_columns else ALONG_K
            divided = by_columns and not self._columns[module].gathered
            for index in self._born[position]:
                self._part[index] = divided

    def _divide_casts(self, positions: list[int]) -> None:
        """Before its product, autocast casts a layer's input, if that needs it, its weight and its bias, in this order. The
        input of a layer split by columns is whole, and so is the bias of one split by rows."""
        casts: dict[int, list[int]] = {}
        storages = self._trace.storages
        for position in positions:
            module = self._module_of[position]
            if self._kind_of[position] == _COPY and (module in self._columns or module in self._rows):
                casts.setdefault(module, []).append(position)
        for module, own in casts.items():
            parameters = int(((storages.category == _PARAMETER) & (storages.module == module)).sum()) or 1
            by_columns, inputs = module in self._columns, max(0, len(own) - parameters)
            weight_and_bias = own[inputs:]
            for position in weight_and_bias if by_columns else [*own[:inputs], *weight_and_bias[:1]]:
                self._all(position)

    def _divide_backward(self, positions: np.ndarray) -> None:
        seen: set[int] = set()
        open_pair, waiting = None, 0  # the pair that backward is between the layers of, and products left of its columns
        head = self._layers.head if self._parallelism.loss_parallel else None
        for position in positions.tolist():
            module = self._module_of[position]
            if head is not None and self._segment_of[position] == len(self._trace.header.blocks):
                if module == head.module:
                    head = None
                else:
                    self._all(position)  # the loss along the vocabulary
                    continue
            if self._kind_of[position] == _GEMM and (module in self._columns or module in self._rows):
                by_columns = module in self._columns
                layer = self._layer(module)
                weight = module not in seen and self._makes_weight(position, layer)
                if weight:
                    seen.add(module)
                self._way[position] = (ALONG_M if weight else ALONG_K) if by_columns else ALONG_N
                if weight or not by_columns:
                    self._set_parts(self._born[position])
                if not by_columns and open_pair is not self._rows[module]:
                    open_pair = self._rows[module]
                    waiting = 2 * len(open_pair.columns)
                waiting -= by_columns
                continue
            if module == self._layers.embedding:
                self._all(position)
                continue
            dying = [index for index in self._dying[position] if self._size[index] >= TINY_BYTES]
            if any(self._part[index] for index in dying):
                self._all(position)
            elif open_pair is not None and not open_pair.gathered and waiting > 0 and module != 0:
                size_bytes = self._written[position]
                large = any(self._size[index] > size_bytes / 4 for index in dying)
                if not large and size_bytes >= self._least_bytes(open_pair):
                    self._all(position)

    def _least_bytes(self, pair: LayerPair) -> float:
        """What is smaller than this has neither heads nor hidden features: a half of keys is the smallest that has."""
        return min(self._written[column.position] for column in pair.columns) / 4

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
        of_layers = {*self._columns, *self._rows}
        inside = np.flatnonzero((self._segments >= 0) & (self._segments < blocks))
        for position in inside.tolist():
            if self._way[position] != WHOLE or self._kind_of[position] == _GEMM or self._module_of[position] in of_layers:
                continue
            self._way[position] = ALL
            born = [index for index in self._born[position] if self._size[index] >= TINY_BYTES]
            if self._trace.sequence.phase[position] == _BACKWARD:  # the gradient of a norm's weight stays whole
                born = sorted(born, key=lambda index: -self._size[index])[:1]
            if not self._feeds_a_layer(position):
                self._set_parts(born)

    def _feeds_a_layer(self, position: int) -> bool:
        """Whether the next position is a layer split by columns, for which the result is gathered."""
        after = position + 1
        return after < len(self._way) and self._module_of[after] in self._columns

    def _all(self, position: int) -> None:
        self._way[position] = ALL
        self._set_parts(self._born[position])

    def _set_parts(self, storages: list[int]) -> None:
        for index in storages:
            self._part[index] = True
