"""Fits an update recorded over made-up parameters: its numbers as linear functions of a parameter's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from gpuwise.trace import COLUMNS, KINDS, OperationRow
from gpuwise.trace.update.template_file import RowItem, TemplateItem, TemporaryItem
from gpuwise.trace.update.templates import BLOCKS, Linear, sizes_of
from gpuwise.tracing.updates import UpdateOf, UpdateRecord, record_update

# Shapes of made-up parameters of each form: more than there are sizes that numbers depend on.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "vector": [(3,), (10,), (17,), (40,)],
    "matrix": [(7, 5), (5, 8), (11, 3), (4, 9), (6, 6), (13, 2), (8, 15), (10, 4), (3, 12)],
    "stack": [(2, 7, 5), (3, 5, 8), (4, 11, 3), (2, 4, 9), (5, 6, 2), (2, 3, 13, 2), (3, 2, 4, 6), (6, 3, 8), (7, 9, 4)],
    **{form: [(4096,), (5120,), (8192,), (64, 96)] for form in BLOCKS},
}
OTHER_DTYPE = {"float32": "bfloat16", "bfloat16": "float32", "float64": "float32"}
_FORMS = {
    "adafactor": ("vector", "matrix", "stack"),
    "muon": ("matrix",),
    "adamw-8bit": ("vector", "blocks of 256"),
    "adamw-4bit": ("vector", "blocks of 128"),
}
_LEFT_OUT = ("flops", "workspace_bytes", "causal")  # of products: follows; depends on the processor; not of updates
_PRODUCT, _OVER_MANY = KINDS.index("gemm"), KINDS.index("optimizer")


def forms_of(optimizer: str) -> tuple[str, ...]:
    """The forms of parameters that an optimizer updates differently."""
    return _FORMS.get(optimizer, ("vector",))


@cache
def _recorded(update: UpdateOf, *parameters: tuple[tuple[int, ...], str]) -> UpdateRecord:
    return record_update(update, parameters)


class Fit:
    """A part of an update, over parameters of one form.

    Attributes:
        name: of its sizes: the form; of other parts than the step the part, whose numbers depend on elements alone.
        together: whether parameters are updated together.
    """

    def __init__(self, update: UpdateOf, dtype: str, part: str, form: str):
        self._update, self._dtype, self._part, self._form = update, dtype, part, form
        self.name = form if part == "step" else part
        shapes = SHAPES[form]
        self._alone = [_recorded(update, (shape, dtype)) for shape in shapes]
        self._three = _recorded(update, *((shape, dtype) for shape in shapes[:3]))
        self._sizes = np.array([sizes_of(self.name, shape) for shape in shapes], dtype=float)
        self._start, self._end = self._alone[0].parts[part]
        rows = [_numbers(record, part) for record in self._alone]
        all_rows = _numbers(self._three, part)
        self.together = all_rows != [row for alone in rows[:3] for row in alone]
        count = self._end - self._start
        self._segments = _segments(rows[:3], all_rows) if self.together else [(0, count, False)] if count else []

    def rows(self) -> list[RowItem]:
        """The rows of the template."""
        return [self._row(index) for index in range(self._end - self._start)]

    def template(self, rows: list[int]) -> TemplateItem:
        """The template. rows: the numbers of its rows in the file."""
        return {
            "rows": rows,
            "segments": self._segments,
            "temporaries": [self._temporary(index) for index in self._temporaries()],
            "state": [self._linear([r.state[0][i] for r in self._alone]) for i in range(len(self._alone[0].state[0]))]
            if self._part == "step"
            else [],
        }

    def _linear(self, numbers: Sequence[int]) -> Linear:
        """The coefficients with which the sizes make these numbers."""
        result = np.linalg.lstsq(self._sizes, np.array(numbers, dtype=float), rcond=None)[0]
        linear = tuple(round(factor) for factor in result)
        assert (self._sizes @ np.array(linear) == np.array(numbers)).all(), (self._update, self._part, self._form, numbers)
        return linear

    def _row(self, index: int) -> RowItem:
        at = self._start + index
        first: OperationRow = self._alone[0].rows[at]
        left_out = [*_LEFT_OUT, *(["kernels"] if first.kind == _OVER_MANY else [])]
        values = {
            name: self._linear([getattr(r.rows[at].values, name) for r in self._alone])
            for name in COLUMNS
            if name not in left_out
        }
        item: RowItem = {
            "name": first.name,
            "kind": KINDS[first.kind],
            "dtype": first.dtype,
            "values": {name: linear for name, linear in values.items() if any(linear)},
        }
        if first.kind == _OVER_MANY:
            item["updated"] = [self._linear(sizes) for sizes in zip(*(r.updated[at] for r in self._alone), strict=True)]
        if any(once and start <= index < end for start, end, once in self._segments):
            self._share(index, item)
        return item

    def _share(self, index: int, item: RowItem) -> None:
        """Sets what a row that runs once has however many parameters there are."""
        at = self._three.parts[self._part][0] + self._position(index)
        all_of, updated = self._three.rows[at], item.get("updated", [])
        alone = [r.rows[self._start + index] for r in self._alone[:3]]
        shared = {
            name: (sum(getattr(row.values, name) for row in alone) - getattr(all_of.values, name)) // 2
            for name in COLUMNS
            if name not in _LEFT_OUT and not (all_of.kind == _OVER_MANY and name == "kernels")
        }
        if any(shared.values()):
            item["shared"] = {name: number for name, number in shared.items() if number}
        tensors = (3 * len(updated) - len(self._three.updated[at])) // 2
        if tensors:
            item["shared_tensors"] = tensors
            for _ in range(tensors):
                updated.remove((1, *[0] * (len(self._sizes[0]) - 1)))

    def _position(self, index: int, turn: int = 0) -> int:
        """Where three parameters have a row."""
        at = 0
        for start, end, once in self._segments:
            if start <= index < end:
                return at + index - start + (0 if once else turn * (end - start))
            at += (end - start) * (1 if once else 3)
        raise AssertionError(index)

    def _temporaries(self) -> list[int]:
        """Those of a parameter alone that this part allocates."""
        return [i for i, (_, born, _) in enumerate(self._alone[0].temporaries) if self._start <= born < self._end]

    def _temporary(self, index: int) -> TemporaryItem:
        _, born, died = self._alone[0].temporaries[index]
        local = born - self._start
        item: TemporaryItem = {
            "size_bytes": self._linear([r.temporaries[index][0] for r in self._alone]),
            "born": local,
            "died": died - self._start if died < self._end else None,
        }
        if self._is_shared(local):
            item["shared"] = True
        if died >= self._end:
            part, (start, _) = next((p, b) for p, b in self._alone[0].parts.items() if b[0] <= died < b[1])
            item["until"] = {self._form if part == "step" else part: died - start}
        elif self._part == "step" and died == self._end - 1:
            until = self._until(index)
            if until is not None:
                item["died"], item["until"] = None, until
        return item

    def _is_shared(self, local: int) -> bool:
        """Whether three parameters have as many temporaries of a row as one."""
        if not any(once and start <= local < end for start, end, once in self._segments):
            return False
        start = self._three.parts[self._part][0] + self._position(local)
        counts = [
            sum(born == at for _, born, _ in r.temporaries)
            for r, at in ((self._alone[0], self._start + local), (self._three, start))
        ]
        return counts[0] == counts[1]

    def _until(self, index: int) -> dict[str, int] | None:
        """Where the next parameters of each form free a temporary that is alive at the last row; None: this row does."""
        until, outlives = {}, False
        first = SHAPES[self._form][0], self._dtype
        for form in forms_of(self._update.optimizer):
            dtype = OTHER_DTYPE[self._dtype] if self.together and form == self._form else self._dtype
            after = [(shape, dtype) for shape in SHAPES[form][1:3]]
            record = _recorded(self._update, first, *(after[:1] if self.together else after))
            begin, end = record.parts["step"]
            died = record.temporaries[index][2]
            length = self._end - self._start
            if died < begin + length:
                continue
            outlives = True
            other = _recorded(self._update, after[0]).parts["step"]
            died -= begin + length
            if died < other[1] - other[0] and died + begin + length < end - 1:
                until[form] = died
        return until if outlives else None


def _numbers(record: UpdateRecord, part: str) -> list[tuple[object, ...]]:
    """The rows of a part, without what depends on the processor."""
    start, end = record.parts[part]
    return [(*row[:3], *row.values._replace(workspace_bytes=0)) for row in record.rows[start:end]]


def _segments(
    alone: Sequence[Sequence[tuple[object, ...]]], together: Sequence[tuple[object, ...]], index: int = 0, at: int = 0
) -> list[tuple[int, int, bool]]:
    """Which rows of three parameters are loops over them, and which run once: (start, end, once) of each segment.

    Raises AssertionError where neither makes the rows that were recorded.
    """
    segments = _searched(alone, together, index, at)
    assert segments is not None, together
    merged: list[tuple[int, int, bool]] = []
    for start, end, once in segments:
        if once and merged and merged[-1][2]:
            merged[-1] = merged[-1][0], end, True
        else:
            merged.append((start, end, once))
    return merged


def _searched(
    alone: Sequence[Sequence[tuple[object, ...]]], together: Sequence[tuple[object, ...]], index: int, at: int
) -> list[tuple[int, int, bool]] | None:
    count = len(alone[0])
    if index == count:
        return [] if at == len(together) else None
    for end in range(index + 1, count + 1):
        if list(together[at : at + 3 * (end - index)]) == [row for rows in alone for row in rows[index:end]]:
            rest = _searched(alone, together, end, at + 3 * (end - index))
            if rest is not None:
                return [(index, end, False), *rest]
    if at < len(together) and together[at][:3] == alone[0][index][:3]:
        rest = _searched(alone, together, index + 1, at + 1)
        return None if rest is None else [(index, index + 1, True), *rest]
    return None
