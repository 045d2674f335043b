"""A step of many alike blocks, from two recordings of the same model with few of them, one with a block more. Where kinds of
blocks take turns (every sixth has attention without a window), a period of them takes the place of a block.

The longer recording has, in each pass over the blocks, one period of rows more than the shorter one. Where that period equals
the one before it, every further block adds such a period. Everything that counts is then affine in the number of blocks, and
so follows from the two: a storage's birth and death within a pass, the position a stream waits for, the bytes of a kernel over
all parameters, the number of a block.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import cast

import numpy as np

from gpuwise.trace.header import UpdatedParameter
from gpuwise.trace.loading import Loading
from gpuwise.trace.parallel.alignment import (
    Alignment,
    NotPeriodicError,
    aligned,
    by_one,
    runs_over_blocks,
    with_number,
    without_number,
)
from gpuwise.trace.parallel.recorded_rows import Counted, RecordedRows, RecordedStep, StorageRows, WaitRows, storage_lists
from gpuwise.trace.tables import BEFORE, COLUMNS, KINDS, Operations, OperationSequence, Storages, Waits
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.rows import launches_of_counted

_KERNELS = COLUMNS.index("kernels")


def repeated(short: RecordedStep, long: RecordedStep, *, copies: int, container: str, period: int) -> RecordedStep | None:
    """The step of the model with so many periods of blocks more than `short` has; None where the recordings do not show it.

    Arguments:
        short, long: recordings with few blocks, `long` with a period more than `short`.
        copies: number of periods beyond those of `short`, more than one.
        container: path of the module whose children the blocks are.
        period: after how many blocks they are alike again; 1 where all are alike.
    """
    try:
        repeat = _Repeat(RecordedRows(short, container, period), RecordedRows(long, container, period), copies)
        return RecordedStep(repeat.trace().check(), repeat.of_many, short.shapes + long.shapes)
    except NotPeriodicError:
        return None


class _Repeat:
    """Puts the result together. a, b: the recordings; copies: periods of the result beyond those of the shorter one.

    Attributes:
        of_many: as of a RecordedStep; complete once the trace is made.
    """

    def __init__(self, a: RecordedRows, b: RecordedRows, copies: int):
        self._a, self._b, self._copies = a, b, copies
        if a.turns != b.turns or len(b.trace.header.blocks) != len(a.trace.header.blocks) + a.period:
            raise NotPeriodicError
        heads = [
            replace(
                p.trace.header,
                blocks=(),
                parameters=0,
                trainable_parameters=0,
                gradient_shapes=(),
                updated=(),
                expert_modules=(),
            )
            for p in (a, b)
        ]
        if heads[0] != heads[1] or a.trace.header.stages:
            raise NotPeriodicError
        self._passes = [
            aligned(a.strict[i:j], b.strict[k:m], (a.loose[i:j], b.loose[k:m]), self._copies)
            for i, j, k, m in zip(a.bounds, a.bounds[1:], b.bounds, b.bounds[1:], strict=False)
        ]
        lengths = [j - i + p.length * self._copies for i, j, p in zip(a.bounds, a.bounds[1:], self._passes, strict=False)]
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._modules = self._paths(a.trace.modules, b.trace.modules)
        self._index = {path: index for index, path in enumerate(self._modules)}
        self.of_many: dict[int, Counted] = {}

    def trace(self) -> Trace:
        a, b, header = self._a, self._b, self._a.trace.header
        storages, shapes = self._storages()
        operations, sequence = self._rows()

        def grown(name: str) -> int:
            first, second = (getattr(part.trace.header, name) for part in (a, b))
            return int(first + (second - first) * self._copies)

        blocks = self._paths(header.blocks, b.trace.header.blocks)
        parameters, trainable = grown("parameters"), grown("trainable_parameters")
        header = replace(header, blocks=blocks, parameters=parameters, trainable_parameters=trainable, gradient_shapes=shapes)
        of_experts = self._paths(header.expert_modules, b.trace.header.expert_modules)
        header = replace(header, updated=self._updated(), expert_modules=of_experts)
        return Trace(header, operations, sequence, storages, self._modules, self._waits(), self._loading())

    def _rows(self) -> tuple[Operations, OperationSequence]:
        """The positions, and the distinct operations in the order in which they first run."""
        a, b = self._a, self._b
        index: dict[Hashable, int] = {}
        columns: list[tuple[int, ...]] = []
        for turn, alignment in enumerate(self._passes):
            rows = a.rows[a.bounds[turn] : a.bounds[turn + 1]], b.rows[b.bounds[turn] : b.bounds[turn + 1]]
            modules = self._module_indices(alignment, *([row[1] for row in part] for part in rows))
            operations = self._operations(alignment, turn, [row[0] for row in rows[0]], [row[0] for row in rows[1]])
            rest = alignment.choose([row[2:] for row in rows[0]], [row[2:] for row in rows[1]])
            for operation, module, others in zip(operations, modules, rest, strict=True):
                columns.append((index.setdefault(operation, len(index)), module, *others))  # type: ignore[misc]
        names, kinds, dtypes, groups, layouts, values = zip(*index, strict=True)
        table = np.array(columns, dtype=np.int64).T
        types = [getattr(a.trace.sequence, name).dtype for name in ("operation", "module", "phase", "micro_step", "stream")]
        return Operations(
            tuple(names),
            np.array(kinds, dtype=np.int8),
            tuple(dtypes),
            np.array(values, dtype=np.int64),
            np.array(groups, dtype=np.int8),
            np.array(layouts, dtype=np.int8),
        ), OperationSequence(*(column.astype(dtype) for column, dtype in zip(table, types, strict=True)))

    def _operations(self, alignment: Alignment, turn: int, short: list[int], long: list[int]) -> list[Hashable]:
        """The operation of each position of a pass; its numbers grow where it goes over all blocks' parameters."""
        a, b = self._a, self._b
        chosen = alignment.choose([a.operations[i] for i in short], [b.operations[i] for i in long])
        many = [[part.of_many.get(part.bounds[turn] + i) for i in range(len(rows))] for part, rows in ((a, short), (b, long))]
        of_many = cast(list[Counted | None], alignment.choose(*many))
        for position, operation in enumerate(short):
            later = position if position < alignment.at else position + alignment.length
            first, second = a.operations[operation], b.operations[long[later]]
            if first == second:
                continue
            values = [int(x + (y - x) * self._copies) for x, y in zip(first[-1], second[-1], strict=True)]
            at = position if position < alignment.at else position + alignment.length * self._copies
            if first[1] == KINDS.index("optimizer"):
                counted = of_many[at] = self._counted(many[0][position], many[1][later])
                values[_KERNELS] = launches_of_counted(counted)
            chosen[at] = (*first[:-1], tuple(values))
        self.of_many |= {int(self._starts[turn]) + at: sizes for at, sizes in enumerate(of_many) if sizes is not None}
        return chosen

    def _counted(self, short: Counted | None, long: Counted | None) -> Counted:
        """What a kernel over all blocks' tensors goes over."""
        if short is None or long is None:
            raise NotPeriodicError
        parts = ((1 - self._copies, short), (self._copies, long))
        return tuple((times * count, elements) for times, counted in parts for count, elements in counted)

    def _storages(self) -> tuple[Storages, tuple[tuple[int, ...], ...]]:
        """The storages, and the shapes behind gradients."""
        parts = self._a, self._b
        lists = [storage_lists(part) for part in parts]
        if [key for key, _ in lists[0]] != [key for key, _ in lists[1]]:
            raise NotPeriodicError
        tables: list[np.ndarray] = []
        shapes: tuple[tuple[int, ...], ...] = ()
        for (key, short), (_, long) in zip(*lists, strict=True):
            rows = [StorageRows(part, chosen) for part, chosen in zip(parts, (short, long), strict=True)]
            alignment = aligned(rows[0].tokens, rows[1].tokens, (rows[0].tokens, rows[1].tokens), self._copies)
            plain = np.array(alignment.choose(rows[0].plain, rows[1].plain), dtype=np.int64).reshape(-1, 3)
            modules = self._module_indices(alignment, rows[0].modules, rows[1].modules)
            born = self._positions(alignment, rows[0].born, rows[1].born)
            died = self._positions(alignment, rows[0].died, rows[1].died)
            tables.append(np.column_stack([plain, np.array(modules, dtype=np.int64), born, died]))
            of_gradients = [part.trace.header.gradient_shapes for part in parts]
            if key[0] == "gradients" and all(of_gradients):
                shapes = tuple(alignment.choose(*of_gradients))  # type: ignore[arg-type]
        size, category, stream, module, born, died = np.concatenate(tables).T
        old = self._a.trace.storages
        columns = (category, module, born, died, stream)
        types = [getattr(old, name).dtype for name in ("category", "module", "born", "died", "stream")]
        return Storages(size, *(column.astype(dtype) for column, dtype in zip(columns, types, strict=True))), shapes

    def _updated(self) -> tuple[UpdatedParameter, ...]:
        """What the optimizer updates."""
        parts = self._a, self._b
        lists = [part.trace.header.updated for part in parts]
        modules = [[parameter.module for parameter in chosen] for chosen in lists]
        tokens = [
            [(parameter.shape, parameter.element_bytes, part.starred[parameter.module]) for parameter in chosen]
            for part, chosen in zip(parts, lists, strict=True)
        ]
        alignment = aligned(tokens[0], tokens[1], (tokens[0], tokens[1]), self._copies)
        shapes = alignment.choose(*([parameter.shape for parameter in chosen] for chosen in lists))
        sizes = alignment.choose(*([parameter.element_bytes for parameter in chosen] for chosen in lists))
        indices = self._module_indices(alignment, *modules)
        return tuple(map(UpdatedParameter, shapes, sizes, indices))  # type: ignore[arg-type]

    def _waits(self) -> Waits:
        parts, old = (self._a, self._b), self._a.trace.waits
        tables = [np.zeros((0, 3), dtype=np.int64)]
        for turn in range(len(self._passes) + 1):
            rows = [WaitRows(part, turn) for part in parts]
            alignment = aligned(rows[0].tokens, rows[1].tokens, (rows[0].tokens, rows[1].tokens), self._copies)
            position = self._positions(alignment, rows[0].position, rows[1].position)
            on = self._positions(alignment, rows[0].on, rows[1].on)
            stream = np.array(alignment.choose(rows[0].stream, rows[1].stream), dtype=np.int64)
            tables.append(np.column_stack([position, stream, on]))
        position, stream, on = np.concatenate(tables).T
        return Waits(position.astype(old.position.dtype), stream.astype(old.stream.dtype), on.astype(old.on.dtype))

    def _loading(self) -> Loading:
        a, b = self._a.trace.loading, self._b.trace.loading
        short, long = (list(zip(part.size_bytes.tolist(), part.stays.tolist(), strict=True)) for part in (a, b))
        alignment = aligned(short, long, (short, long), self._copies)
        size_bytes = alignment.choose(a.size_bytes.tolist(), b.size_bytes.tolist())
        lifetime = alignment.extend(
            a.lifetime.tolist(),
            b.lifetime.tolist(),
            lambda slopes: set(slopes.tolist()) <= {0, alignment.length, -alignment.length},
        )
        return Loading(np.array(size_bytes, dtype=np.int64), lifetime)

    def _positions(self, alignment: Alignment, short: list[tuple[int, int]], long: list[tuple[int, int]]) -> np.ndarray:
        """Positions of the result from those within passes."""
        turns = np.array(alignment.choose([turn for turn, _ in short], [turn for turn, _ in long]), dtype=np.int64)
        periods = {0, *(p.length for p in self._passes), *(-p.length for p in self._passes)}
        inside = alignment.extend([at for _, at in short], [at for _, at in long], lambda s: set(s.tolist()) <= periods)
        return np.where(turns < 0, BEFORE, self._starts[np.maximum(turns, 0)] + inside)

    def _module_indices(self, alignment: Alignment, short: list[int], long: list[int]) -> list[int]:
        a, b = self._a, self._b
        starred = alignment.choose([a.starred[i] for i in short], [b.starred[i] for i in long])
        numbers = alignment.extend([a.number[i] for i in short], [b.number[i] for i in long], by_one).tolist()
        paths = [with_number(str(path), number) for path, number in zip(starred, numbers, strict=True)]
        if any(path not in self._index for path in paths):
            raise NotPeriodicError
        return [self._index[path] for path in paths]

    def _paths(self, short: tuple[str, ...], long: tuple[str, ...]) -> tuple[str, ...]:
        """Paths in their order: each run over the blocks, from the first to the last, is extended."""
        paths: list[str] = []
        a = self._a
        runs = [runs_over_blocks([without_number(path, a.container, a.period) for path in chosen]) for chosen in (short, long)]
        if len(runs[0]) != len(runs[1]):
            raise NotPeriodicError
        for first, second in zip(*runs, strict=True):
            starred = [[path for path, _ in run] for run in (first, second)]
            alignment = aligned(starred[0], starred[1], (starred[0], starred[1]), self._copies)
            numbers = alignment.extend([number for _, number in first], [number for _, number in second], by_one)
            chosen = alignment.choose(*starred)
            paths += [with_number(str(path), number) for path, number in zip(chosen, numbers.tolist(), strict=True)]
        return tuple(paths)
