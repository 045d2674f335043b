"""TraceFamily: one recorded program as a function of its sizes.

Shapes are products of dimensions, so every count of bytes and operations of a program is a polynomial in the batch and
in the sequence length (or image size): degree one in the batch, two in the sequence. Recording the program at a few
small sizes therefore gives it exactly at every size, as long as the sequence of operations does not change.
The polynomial is kept in Newton's form (forward differences), so that its coefficients are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from gpuwise.errors import InputError
from gpuwise.trace.gradient_shapes import growing_gradients, shapes_at
from gpuwise.trace.header import Header
from gpuwise.trace.loading import Loading
from gpuwise.trace.stepped import stepped_bytes
from gpuwise.trace.tables import CATEGORIES, COLUMNS, Operations, OperationSequence, Storages, Waits
from gpuwise.trace.trace import Trace

MOST_COUNTED = 2**62  # of bytes or operations in the recorded micro-batches: columns, and sums over them, are int64
_WORKSPACE = COLUMNS.index("workspace_bytes")


@dataclass(frozen=True)
class Axis:
    """A size that may vary: recorded at start, start + step, ..., start + degree × step.

    Attributes:
        name: name of the size, as in Header.sizes.
        start: the smallest recorded value, in the size's unit.
        step: distance between recorded values.
        degree: degree of the polynomial.
        exact_every: the polynomial holds at multiples of this, such as 32 for image sizes. Default 1: at every value.
    """

    name: str
    start: int
    step: int
    degree: int
    exact_every: int = 1

    @property
    def points(self) -> list[int]:
        return [self.start + i * self.step for i in range(self.degree + 1)]

    def basis(self, value: int) -> list[float]:
        """Newton's basis: binomial(t, i) for i = 0..degree with t = (value - start) / step."""
        t = Fraction(value - self.start, self.step)  # a quotient of floats would not give whole binomials back
        return [float(prod((t - j) / (j + 1) for j in range(i))) for i in range(self.degree + 1)]


@dataclass(frozen=True)
class TraceFamily:
    """A Trace whose numbers carry one more axis of polynomial terms.

    Attributes:
        header: header at the default sizes.
        axes: the sizes that may vary; none for a family of one.
        operations: values of shape (operations, len(COLUMNS), terms), with prod(degree + 1) terms over the axes.
        sequence: as in a Trace.
        storages: size_bytes of shape (storages, terms).
        modules, waits, loading: as in a Trace.
    """

    header: Header
    axes: tuple[Axis, ...]
    operations: Operations
    sequence: OperationSequence
    storages: Storages
    modules: tuple[str, ...]
    waits: Waits = field(default_factory=Waits)
    loading: Loading = field(default_factory=Loading)

    def covers(self, sizes: Mapping[str, int]) -> bool:
        """Whether `at` supports these sizes."""
        axes = {axis.name: axis for axis in self.axes}
        return all(
            (axes[name].exact_every and value % axes[name].exact_every == 0)
            if name in axes
            else value == self.header.sizes.get(name)
            for name, value in sizes.items()
        )

    def weights(self, sizes: Mapping[str, int]) -> np.ndarray:
        """What each term counts at these sizes, of which every axis has one. Shape (terms,)."""
        weights = np.ones(1)
        for axis in self.axes:
            weights = np.outer(weights, axis.basis(sizes[axis.name])).ravel()
        return weights

    def at(self, *, accumulation: int = 1, **sizes: int) -> Trace:
        """The Trace at these sizes; one that is not named keeps its default.

        Raises InputError outside the family, UnsupportedError for an accumulation that a step of the job's own has not.
        """
        if not self.covers(sizes):
            raise InputError(
                f"{self.header.job} is recorded for {_describe(self)}, not for {sizes}.",
                ['name the job itself where PyTorch is installed, which traces any size: pip install "gpuwise[torch]"'],
            )
        self.header.check_accumulation(accumulation)
        sizes = {**self.header.sizes, **sizes}
        weights = self.weights(sizes)
        exact, exact_bytes = np.rint(self.operations.values @ weights), np.rint(self.storages.size_bytes @ weights)
        self._check_countable(exact, exact_bytes)
        values = exact.astype(np.int64)
        values[:, _WORKSPACE] += _stepped(self.header, self.operations, values)
        units = self.header.units_per_sample
        if self.header.sample_unit == "token" and "seq_len" in sizes:
            units = sizes["seq_len"]
        strategy = self.header.strategy.but(micro_batch=sizes["micro_batch"], accumulation=accumulation)
        header = replace(self.header, sizes=sizes, units_per_sample=units, strategy=strategy)
        if self._growing:
            shapes = shapes_at(header.gradient_shapes, self._growing, self.storages.size_bytes[:, 0], exact_bytes)
            header = replace(header, gradient_shapes=shapes)
        return Trace(
            header,
            replace(self.operations, values=values),
            self.sequence,
            replace(self.storages, size_bytes=exact_bytes.astype(np.int64)),
            self.modules,
            self.waits,
            self.loading,
        )

    @cached_property
    def _growing(self) -> list[tuple[int, int]]:
        """Gradients whose shape changes with the sizes; none where the recording does not say the shapes."""
        gradients = int((self.storages.category == CATEGORIES.index("gradient")).sum())
        return growing_gradients(self.storages) if len(self.header.gradient_shapes) == gradients else []

    def _check_countable(self, values: np.ndarray, size_bytes: np.ndarray) -> None:
        """Raises InputError where a total of the recorded micro-batches would pass int64, where NumPy wraps around silently."""
        runs = np.bincount(self.sequence.operation, minlength=len(self.operations)).astype(float)
        most = max((runs @ np.abs(values)).max(initial=0), size_bytes.sum())
        if most >= MOST_COUNTED:
            raise InputError(
                f"the recorded micro-batches of {self.header.job} at these sizes count {most:.1e} bytes or operations; "
                f"gpuwise counts to {MOST_COUNTED:.1e}.",
                ["a smaller --micro-batch, or smaller layers"],
            )


def build_family(
    traces: Mapping[tuple[int, ...], Trace], axes: tuple[Axis, ...], default: Mapping[str, int]
) -> TraceFamily | None:
    """Joins recordings on the grid of `axes` to a family with these default sizes; None where their structure differs.

    Arguments:
        traces: one for each point of the grid, keyed by the sizes in the order of `axes`. Distinct operations of one
            grid point need not be distinct at another: they are matched by position.
    """
    grid = list(product(*(axis.points for axis in axes)))
    first = traces[grid[0]]
    for trace in traces.values():
        if not _same_structure(first, trace):
            return None
    shape = tuple(axis.degree + 1 for axis in axes)
    by_position = np.stack([without_steps(traces[point])[traces[point].sequence.operation] for point in grid], axis=-1)
    identity = np.column_stack([first.sequence.operation, by_position.reshape(len(first.sequence), -1)])
    _, chosen, operation = np.unique(identity, axis=0, return_index=True, return_inverse=True)
    in_order = np.argsort(chosen)  # as they first run: np.unique sorts by numbers, which are those of the grid
    chosen, operation = chosen[in_order], np.argsort(in_order)[operation.ravel()]
    kinds = first.sequence.operation[chosen]
    values = forward_differences(by_position[chosen].reshape(len(chosen), by_position.shape[1], *shape), len(shape))
    size_bytes = np.stack([traces[point].storages.size_bytes for point in grid], axis=-1)
    operations = replace(first.operations.take(kinds), values=values.reshape(len(chosen), by_position.shape[1], -1))
    sizes = forward_differences(size_bytes.reshape(len(first.storages), *shape), len(shape)).reshape(len(first.storages), -1)
    header = replace(first.header, sizes={**first.header.sizes, **default})
    return TraceFamily(
        header,
        axes,
        operations,
        replace(first.sequence, operation=operation.astype(np.int32)),
        replace(first.storages, size_bytes=sizes),
        first.modules,
        first.waits,
        first.loading,
    )


def family_of_one(trace: Trace) -> TraceFamily:
    """A family without axes, which covers only the trace's own sizes."""
    operations = replace(trace.operations, values=without_steps(trace)[..., None])
    storages = replace(trace.storages, size_bytes=trace.storages.size_bytes[..., None])
    return TraceFamily(trace.header, (), operations, trace.sequence, storages, trace.modules, trace.waits, trace.loading)


def _stepped(header: Header, operations: Operations, values: np.ndarray) -> np.ndarray:
    """Workspace bytes that are no polynomial of the sizes (see gpuwise.trace.stepped). Shape (operations,)."""
    if header.target == "cpu":
        return np.zeros(len(operations), dtype=np.int64)
    return stepped_bytes(operations.name, operations.dtype, values)


def without_steps(trace: Trace) -> np.ndarray:
    """The values of a recording's operations, without the bytes that `TraceFamily.at` adds."""
    values = trace.operations.values.copy()
    values[:, _WORKSPACE] -= _stepped(trace.header, trace.operations, values)
    return values


def forward_differences(values: np.ndarray, axes: int) -> np.ndarray:
    """Forward differences along each of the last `axes` axes: entry i becomes the i-th difference at the start."""
    values = values.astype(np.int64)
    for axis in range(values.ndim - axes, values.ndim):
        length = values.shape[axis]
        rows = [np.diff(values, n=i, axis=axis).take(0, axis=axis) for i in range(length)]
        values = np.stack(rows, axis=axis)
    return values


def _same_structure(a: Trace, b: Trace) -> bool:
    def rows(t: Trace) -> list[tuple[str, str, int, int, int]]:
        ops = t.operations
        numbers = (column.tolist() for column in (ops.kind, ops.group, ops.channels_last))
        return list(zip(ops.name, ops.dtype, *numbers, strict=True))

    def equal(a: object, b: object, *columns: str) -> bool:
        return all(np.array_equal(getattr(a, column), getattr(b, column)) for column in columns)

    rows_a, rows_b = rows(a), rows(b)
    return (
        len(a.sequence) == len(b.sequence)
        and len(a.storages) == len(b.storages)
        and a.modules == b.modules
        and all(rows_a[i] == rows_b[j] for i, j in zip(a.sequence.operation, b.sequence.operation, strict=True))
        and a.header.groups == b.header.groups
        and equal(a.sequence, b.sequence, "module", "phase", "micro_step", "stream")
        and equal(a.storages, b.storages, "category", "module", "born", "died", "stream")
        and equal(a.waits, b.waits, "position", "stream", "on")
        and equal(a.loading, b.loading, "size_bytes", "lifetime")
    )


def _describe(family: TraceFamily) -> str:
    fixed = {k: v for k, v in family.header.sizes.items() if k not in {a.name for a in family.axes}}
    free = [f"any {a.name}" + (f" that is a multiple of {a.exact_every}" if a.exact_every > 1 else "") for a in family.axes]
    return ", ".join([*free, *(f"{name} {value}" for name, value in fixed.items())])
