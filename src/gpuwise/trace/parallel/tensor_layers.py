"""The linear layers that tensor parallelism splits, derived from a recorded step.

As gpuwise.runtime.parallel derives its plan from a forward pass: layers that feed another one (queries, keys and values; gate
and up) are split by columns and that one by rows; the embedding of the vocabulary by rows and the layer that predicts from it
by columns. Where one layer makes queries, keys and values together, its output is gathered, and every rank computes attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.trace.parallel.segments import FIRST, FORWARD, segments_of
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS
from gpuwise.trace.trace import Trace

_GEMM, _ATTENTION, _EMBEDDING = (KINDS.index(name) for name in ("gemm", "attention", "embedding"))
_PARAMETER = CATEGORIES.index("parameter")
_M_N_K, _K_BATCH = ([COLUMNS.index(name) for name in names] for names in (("m", "n", "k"), ("k", "batch")))


@dataclass(frozen=True)
class Layer:
    """A linear layer in forward.

    Attributes:
        module: index of its module.
        position: where it runs in the first micro-batch.
        rows, outputs, inputs: m, n and k of its product.
    """

    module: int
    position: int
    rows: int
    outputs: int
    inputs: int


@dataclass(frozen=True)
class LayerPair:
    """Layers split by columns that feed one split by rows.

    Attributes:
        columns: the former.
        row: the latter.
        head_dim: size of a head where attention lies between them, else 0.
        gathered: whether the columns' output is gathered, and what lies between runs whole.
    """

    columns: tuple[Layer, ...]
    row: Layer
    head_dim: int
    gathered: bool


@dataclass(frozen=True)
class SplitLayers:
    """What tensor parallelism splits in the blocks of a step and around them.

    Attributes:
        pairs: of the blocks, in the order of forward.
        embedding: module of the embedding; None where it stays whole or is not in this step.
        head: the layer that predicts the vocabulary; None as above.
    """

    pairs: tuple[LayerPair, ...]
    embedding: int | None
    head: Layer | None


def split_layers(trace: Trace, degree: int, *, by_heads: bool = False) -> SplitLayers:
    """The layers of a step, or of a stage, for so many ranks.

    Arguments:
        by_heads: see tensor_parallel.

    Raises InputError where heads or features do not divide, UnsupportedError for blocks in which no pair is recognised.
    """
    whole, vocabulary = trace.once(("layers", by_heads), lambda: _layers(trace, by_heads=by_heads))
    for pair in whole.pairs:
        _check(trace, pair, degree)
    return SplitLayers(
        whole.pairs,
        whole.embedding if vocabulary % degree == 0 else None,
        None if whole.head is not None and whole.head.outputs % degree else whole.head,
    )


def _layers(trace: Trace, *, by_heads: bool) -> tuple[SplitLayers, int]:
    """The layers that some number of ranks can split, and the rows of the embedding."""
    segments, sequence = segments_of(trace), trace.sequence
    kind = trace.operations.kind[sequence.operation]
    forward = (sequence.phase == FORWARD) & (sequence.micro_step == 0)
    chosen = np.flatnonzero(forward & np.isin(kind, [_GEMM, _ATTENTION]))
    blocks = len(trace.header.blocks)
    pairs: list[LayerPair] = []
    for block in np.unique(segments[chosen]).tolist():
        if 0 <= block < blocks:
            pairs += _pairs(trace, chosen[segments[chosen] == block], by_heads=by_heads)
    if blocks and not pairs:
        raise UnsupportedError(
            f"the recorded blocks of {trace.header.job} show no linear layers that tensor parallelism could split.",
            ["--mesh dp_shard=N", "gpuwise forecast of the job itself, which records each rank with PyTorch"],
        )
    after = [p for p in chosen.tolist() if segments[p] == blocks and kind[p] == _GEMM]
    tables = np.flatnonzero(forward & (kind == _EMBEDDING) & (segments == FIRST))
    embedding, vocabulary = _table(trace, tables)
    return SplitLayers(tuple(pairs), embedding, _layer(trace, after[-1]) if after else None), vocabulary


def divides_layers(trace: Trace, degree: int, *, by_heads: bool = False) -> bool:
    """Whether so many ranks divide the heads and features of a step's blocks; False where no pair is recognised.

    Arguments:
        by_heads: see tensor_parallel.
    """

    def parts() -> tuple[int, ...]:
        try:
            layers = split_layers(trace, 1, by_heads=by_heads)
        except UnsupportedError:
            return ()
        return tuple(_parts(pair, column)[0] for pair in layers.pairs for column in pair.columns)

    sizes = trace.once(("parts of layers", by_heads), parts)
    return bool(sizes) and all(size % degree == 0 for size in sizes)


def _layer(trace: Trace, position: int) -> Layer:
    row = int(trace.sequence.operation[position])
    m, n, k = trace.operations.values[row, _M_N_K].tolist()
    return Layer(int(trace.sequence.module[position]), position, m, n, k)


def _pairs(trace: Trace, positions: np.ndarray, *, by_heads: bool) -> list[LayerPair]:
    """The pairs of one block."""
    operations, pairs = trace.operations, list[LayerPair]()
    pending: list[Layer] = []
    width = head_dim = 0
    for position in positions.tolist():
        row = trace.sequence.operation[position]
        k, batch = operations.values[row, _K_BATCH].tolist()
        heads = head_dim > 0 or any(column.outputs % k == 0 for column in pending)
        in_products = batch > 1 and heads
        if operations.kind[row] == _ATTENTION or in_products:
            head_dim = head_dim or k  # where no kernel computes attention, its first product is that of queries and keys
            continue
        layer = _layer(trace, position)
        width = width or layer.inputs
        wider = layer.inputs != width  # of a perceptron: its hidden features
        fed = [column for column in pending if head_dim or (wider and column.outputs in (layer.inputs, 2 * layer.inputs))]
        if layer.outputs == width and fed:
            gathered = len(fed) < 3 and not by_heads if head_dim else any(column.outputs != layer.inputs for column in fed)
            pairs.append(LayerPair(tuple(fed), layer, head_dim, gathered))
            pending, head_dim = [], 0
        else:
            pending.append(layer)
    return pairs


def _parts(pair: LayerPair, column: Layer) -> tuple[int, str]:
    """How many parts a layer has that ranks may share, and what they are."""
    if pair.head_dim and not pair.gathered and column.outputs % pair.head_dim == 0:
        return column.outputs // pair.head_dim, "heads"
    return column.outputs, "outputs"


def _check(trace: Trace, pair: LayerPair, degree: int) -> None:
    for column in pair.columns:
        size, what = _parts(pair, column)
        if size % degree:
            name = trace.modules[column.module]
            most = next(n for n in range(degree, 0, -1) if size % n == 0)
            raise InputError(
                f"tensor parallelism over {degree} devices does not divide the {size:,} {what} of {name!r}.",
                [f"--mesh tp={most}"],
            )


def _table(trace: Trace, positions: np.ndarray) -> tuple[int | None, int]:
    """The module of the largest embedding, and its rows."""
    best: tuple[int | None, int, int] = (None, 1, 0)
    for module in np.unique(trace.sequence.module[positions]).tolist():
        of_module = (trace.storages.module == module) & (trace.storages.category == _PARAMETER)
        shapes = _shapes_of(trace, module)
        size = int(trace.storages.size_bytes[of_module].max(initial=0))
        if shapes and size > best[2]:
            best = module, shapes[0][0], size
    return best[0], best[1]


def _shapes_of(trace: Trace, module: int) -> list[tuple[int, ...]]:
    gradients = np.flatnonzero(trace.storages.category == CATEGORIES.index("gradient"))
    shapes = trace.header.gradient_shapes
    if len(shapes) != len(gradients):
        return []
    return [shape for shape, row in zip(shapes, gradients.tolist(), strict=True) if trace.storages.module[row] == module]
