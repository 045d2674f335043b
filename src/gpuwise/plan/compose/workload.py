"""The kernels of many blocks in one table, which each chip prices in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels.classes import Group, groups
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.types import Chip
from gpuwise.trace.trace import Trace


@dataclass(frozen=True)
class Work:
    """Operations that run so many times in each cell of an array, such as a phase of a block.

    Attributes:
        tables: the distinct operations at several micro-batches, one after the other, in one table or in several.
        sizes: number of micro-batches.
        operation, cell, times: which operation runs in which cell, how often. Shape (pairs,).
        cells: number of cells.
    """

    tables: tuple[Trace, ...]
    sizes: int
    operation: np.ndarray
    cell: np.ndarray
    times: np.ndarray
    cells: int

    @classmethod
    def of(cls, tables: Sequence[Trace], operation: np.ndarray, cell: np.ndarray, *, sizes: int = 1, cells: int = 1) -> Work:
        """Work of positions of a step: each runs an operation in a cell. Cells below 0 are left out."""
        inside = cell >= 0
        pairs, times = np.unique(operation[inside] * np.int64(cells) + cell[inside], return_counts=True)
        return cls(tuple(tables), sizes, pairs // cells, pairs % cells, times.astype(np.float64), cells)

    def sums(self, each_s: np.ndarray) -> np.ndarray:
        """Seconds of each cell, from those of the operations in all tables. Shape (sizes, cells)."""
        seconds = each_s.reshape(self.sizes, -1)[:, self.operation] * self.times
        rows = np.arange(self.sizes)[:, None] * self.cells + self.cell
        total = np.bincount(rows.ravel(), weights=seconds.ravel(), minlength=self.sizes * self.cells)
        return total.reshape(self.sizes, self.cells)

    def runs(self) -> np.ndarray:
        """Whether an operation of the tables runs in a cell. Shape (operations of all tables,)."""
        each = np.zeros(sum(len(table.operations) for table in self.tables) // self.sizes, dtype=bool)
        each[self.operation] = True
        return np.tile(each, self.sizes)


class Workload:
    """Several works whose kernels are priced together. What runs in none of their cells has no price.

    Arguments:
        works: of the steps of one job.
        precision: of all of them, as in Strategy.
    """

    def __init__(self, works: Sequence[Work], *, precision: str):
        self._works, self._precision = works, precision
        sizes = [len(table.operations) for work in works for table in work.tables]
        self._ends = np.cumsum([sum(len(table.operations) for table in work.tables) for work in works])
        starts = np.cumsum([0, *sizes[:-1]])
        runs = np.concatenate([work.runs() for work in works])
        self._groups = _merged([groups(table) for work in works for table in work.tables], starts, runs)

    def seconds(self, chip: Chip, parameters: Parameters) -> list[np.ndarray]:
        """Seconds of the cells of each work, shape (sizes, cells).

        Raises UnsupportedError where the chip lacks the precision.
        """
        figures, each_s = calibration(chip), np.zeros(self._ends[-1])
        for group, copies in self._groups:
            times = class_times(
                group.kernel_class,
                group.dtype,
                group.shapes,
                chip,
                precision=self._precision,
                parameters=parameters,
                calibration=figures,
            )
            each_s[group.rows] = times.device_s[copies]
        return [work.sums(part) for work, part in zip(self._works, np.split(each_s, self._ends[:-1]), strict=True)]


def _merged(of_traces: Sequence[Sequence[Group]], starts: np.ndarray, runs: np.ndarray) -> list[tuple[Group, np.ndarray]]:
    """The groups of several traces as one each, every shape once; and which of its shapes each of its rows has.

    runs: of each operation of all of them; rows of others are left out.
    """
    parts: dict[tuple[str, str], list[tuple[Group, int]]] = {}
    for start, of_trace in zip(starts.tolist(), of_traces, strict=False):
        for group in of_trace:
            parts.setdefault((group.kernel_class, group.dtype), []).append((group, start))
    result = []
    for (kernel_class, dtype), members in parts.items():
        rows = np.concatenate([group.rows + start for group, start in members])
        run = runs[rows]
        if not run.any():
            continue
        columns = np.stack(
            [
                np.concatenate([getattr(group.shapes, field.name) for group, _ in members])  # Shapes.of makes arrays of all
                for field in fields(Shapes)
            ],
            axis=1,
        )[run]
        as_one = np.ascontiguousarray(columns).view(np.dtype((np.void, columns.itemsize * columns.shape[1]))).ravel()
        _, first, copies = np.unique(as_one, return_index=True, return_inverse=True)
        flops = np.concatenate([group.model_flops for group, _ in members])[run][first]
        shapes = Shapes(*(column[first] for column in columns.T))
        result.append((Group(kernel_class, dtype, rows[run], shapes, flops), copies))
    return result
