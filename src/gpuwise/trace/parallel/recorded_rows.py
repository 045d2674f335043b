"""The rows of a recording with few blocks, by passes over the blocks, and without the numbers of blocks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gpuwise.trace.parallel.alignment import without_number
from gpuwise.trace.tables import BEFORE, CATEGORIES
from gpuwise.trace.trace import Trace

_GRADIENT = CATEGORIES.index("gradient")

Counted = tuple[tuple[int, int], ...]  # numbers of tensors, and the elements of each
Shape = tuple[int, ...]
CallShapes = tuple[tuple[Shape, ...], ...]  # of a call: of each argument and result, its tensors, of which a list has several


@dataclass(frozen=True)
class RecordedStep:
    """A recording, with what its trace does not show.

    Attributes:
        trace: the recording.
        of_many: of each position that is a kernel over many tensors, how many of them have how many elements; of a step that
            follows from recordings the numbers of tensors add up, and some are below zero.
        shapes: of each call of an operator, the shapes of its tensors; empty (the default) on one device.
    """

    trace: Trace
    of_many: Mapping[int, Counted]
    shapes: tuple[CallShapes, ...] = ()


class RecordedRows:
    """A short recording, its modules without the numbers of their blocks, its positions within their passes."""

    def __init__(self, recording: RecordedStep, container: str, period: int):
        self.trace, self.of_many = recording.trace, recording.of_many
        self.container, self.period = container, period
        sequence, operations = self.trace.sequence, self.trace.operations
        self.starred, self.number = zip(*(without_number(path, container, period) for path in self.trace.modules), strict=True)
        # Passes: forward, backward with what it recomputes, the update; of each micro-batch.
        turn = np.where(sequence.phase == 2, 1, sequence.phase).astype(np.int64) * 4 + sequence.micro_step
        self.bounds = [0, *(np.flatnonzero(np.diff(turn)) + 1).tolist(), len(sequence)]
        self.turns = turn[self.bounds[:-1]].tolist()
        rows = zip(
            operations.name,
            operations.kind.tolist(),
            operations.dtype,
            operations.group.tolist(),
            operations.channels_last.tolist(),
            map(tuple, operations.values.tolist()),
            strict=True,
        )
        self.operations = list(rows)
        columns = (sequence.operation, sequence.module, sequence.phase, sequence.micro_step, sequence.stream)
        self.rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self.loose = [(self.operations[o][:-1], self.starred[m], *rest) for o, m, *rest in self.rows]
        self.strict = [
            (loose, self.operations[row[0]][-1] if self._in_block(row[1]) or position not in self.of_many else None)
            for position, (loose, row) in enumerate(zip(self.loose, self.rows, strict=True))
        ]

    def _in_block(self, module: int) -> bool:
        return self.number[module] >= 0

    def located(self, position: int) -> tuple[int, int]:
        """The pass of a position (-1 of BEFORE), and the number of positions before it there."""
        if position == BEFORE:
            return -1, 0
        turn = int(np.searchsorted(self.bounds, position, side="right")) - 1
        return turn, position - self.bounds[turn]

    def token(self, position: int) -> Hashable:
        return self.loose[position] if 0 <= position < len(self.loose) else position < 0


class StorageRows:
    """Storages of one list, by column. tokens: what tells periods apart."""

    def __init__(self, part: RecordedRows, rows: list[int]):
        storages = part.trace.storages
        self.modules: list[int] = storages.module[rows].tolist()
        born, died = storages.born[rows].tolist(), storages.died[rows].tolist()
        self.born, self.died = [part.located(p) for p in born], [part.located(p) for p in died]
        columns = (storages.size_bytes, storages.category, storages.stream)
        self.plain = list(zip(*(column[rows].tolist() for column in columns), strict=True))
        self.tokens: list[Hashable] = [
            (plain, part.starred[module], part.token(b), part.token(d), turn)
            for plain, module, b, d, (turn, _) in zip(self.plain, self.modules, born, died, self.died, strict=True)
        ]


class WaitRows:
    """Waits whose position is in one pass, by column. tokens: what tells periods apart."""

    def __init__(self, part: RecordedRows, turn: int):
        waits = part.trace.waits
        rows = zip(waits.position.tolist(), waits.stream.tolist(), waits.on.tolist(), strict=True)
        chosen = [row for row in rows if part.located(row[0])[0] == turn]
        self.position, self.on = [part.located(row[0]) for row in chosen], [part.located(row[2]) for row in chosen]
        self.stream = [row[1] for row in chosen]
        self.tokens: list[Hashable] = [
            (stream, part.token(position), part.token(on), turn_of_on)
            for (position, stream, on), (turn_of_on, _) in zip(chosen, self.on, strict=True)
        ]


def storage_lists(part: RecordedRows) -> list[tuple[tuple[str, int, int], list[int]]]:
    """Storages in their order, in lists over which the blocks run once: what is there before, by category; what is born in
    each pass; the gradients that stay. Parameters may run over the blocks several times."""
    storages = part.trace.storages
    category, born, module = storages.category.tolist(), storages.born.tolist(), storages.module.tolist()
    runs, last = 0, -1

    def key(row: int) -> tuple[str, int, int]:
        nonlocal runs, last
        if category[row] != _GRADIENT and born[row] != BEFORE:
            return "pass", part.located(born[row])[0], 0
        number = part.number[module[row]]
        runs += 0 <= number < last
        last = number if number >= 0 else last
        return ("gradients", 0, runs) if category[row] == _GRADIENT else ("before", category[row], runs)

    return [(name, list(rows)) for name, rows in groupby(range(len(category)), key)]
