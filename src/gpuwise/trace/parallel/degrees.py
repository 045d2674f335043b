"""The step of a rank as a function of the degrees of its mesh: every count is a + c/degree.

Any two numbers are some a + c/degree, so recordings on two degrees must show more than their counts. They have the same
operations, storages and waits, and of each operator the shapes of its tensors: a dimension stays, or a degree divides it, or,
in a buffer with a row for each rank, multiplies it. Then elements, bytes and operations are a + c/degree wherever the degree
divides all these dimensions. One of which a single element would be left is refused: it broadcasts, and PyTorch takes other
paths. Of an uneven dimension the first rank has a part that is rounded up; half of a rounded half is a rounded quarter, so this
holds there, too. Launches of kernels over many tensors, and kernels' memory that grows in steps (gpuwise.trace.stepped), are
counted at each degree.

As with a family over the batch, a program that itself chooses by the degree goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod

import numpy as np

from gpuwise.strategy import AXES, Mesh
from gpuwise.trace.family import Axis, TraceFamily, build_family, forward_differences, without_steps
from gpuwise.trace.header import Header, UpdatedParameter
from gpuwise.trace.parallel.communication import group_along
from gpuwise.trace.parallel.divided import GridEdge, MeshAxis, divided_dimensions, grid_edges
from gpuwise.trace.parallel.recorded_rows import CallShapes, Counted, RecordedStep
from gpuwise.trace.tables import COLUMNS
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.rows import launches_of_counted

_FLOPS, _WORKSPACE, _KERNELS = (COLUMNS.index(name) for name in ("flops", "workspace_bytes", "kernels"))
_FACTORS = [COLUMNS.index(name) for name in ("batch", "m", "n", "k")]


@dataclass(frozen=True)
class ManyTensors:
    """The tensors of a kernel over many of them.

    Attributes:
        times: how many tensors have each number of elements.
        elements: these numbers. Shape (numbers, terms).
    """

    times: tuple[int, ...]
    elements: np.ndarray


@dataclass(frozen=True)
class RankFamily:
    """The step of a rank as a function of its mesh's degrees: of the first one, or the first of a later stage of a pipeline.

    Attributes:
        steps: the counts of the step; its axes are those of the mesh whose degree may vary.
        divided: sizes of the dimensions that a degree divides. Shape (dimensions, terms).
        of_many: of each operation that is a kernel over many tensors, those.
        updated: dimensions of the parameters that the optimizer updates, one parameter after the other. Shape
            (dimensions, terms).
    """

    steps: TraceFamily
    divided: np.ndarray
    of_many: Mapping[int, ManyTensors]
    updated: np.ndarray

    def at(self, mesh: Mesh) -> Trace | None:
        """The step on a mesh. None where the recordings do not show it: it has another axis, or fewer ranks along one than were
        recorded, or does not divide a dimension into parts of at least two."""
        header, axes = self.steps.header, self.steps.axes
        degrees = {axis.name: int(getattr(mesh, axis.name)) for axis in axes}
        recorded = header.strategy.mesh
        if replace(mesh, **{axis.name: getattr(recorded, axis.name) for axis in axes}) != recorded:
            return None
        if any(degrees[axis.name] < axis.start for axis in axes):
            return None
        weights = self.steps.weights(degrees)
        sizes, counts = self.divided @ weights, self.steps.operations.values @ weights
        counts[list(self.of_many), _KERNELS] = 0
        if not all(map(_whole, (sizes, counts, self.steps.storages.size_bytes @ weights))) or (sizes < 1.5).any():
            return None
        trace = self.steps.at(accumulation=header.strategy.accumulation, **degrees)
        for operation, many in self.of_many.items():
            elements = np.rint(many.elements @ weights).astype(np.int64).tolist()
            counted = zip(many.times, elements, strict=True)
            trace.operations.values[operation, _KERNELS] = launches_of_counted(counted)
        header = replace(_on_mesh(header, mesh), updated=_reshaped(header.updated, self.updated @ weights))
        return _each_once(replace(trace, header=header))


def join_degrees(steps: Mapping[tuple[int, ...], RecordedStep], axes: tuple[MeshAxis, ...]) -> RankFamily | None:
    """Joins recordings on a grid of meshes; None where they do not show the steps of others.

    Arguments:
        steps: recordings of the first rank at one position along the pipeline, one for each point of the grid, keyed by the
            degrees in the order of `axes`.
    """
    recorded = [steps[point] for point in product(*(axis.points for axis in axes))]
    headers = [step.trace.header for step in recorded]
    divided = divided_dimensions([(*step.shapes, _shapes(step.trace.header)) for step in recorded], axes)
    if divided is None or not all(_differs_by_mesh(header, headers[0]) for header in headers):
        return None
    traces = {point: replace(step.trace, header=headers[0]) for point, step in steps.items()}
    family = build_family(traces, axes, {})
    if family is None or not all(_shrinks(recorded, edge) for edge in grid_edges(axes)):
        return None
    of_many = _of_many(family, [step.of_many for step in recorded])
    if of_many is None:
        return None
    dimensions = zip(*([size for parameter in header.updated for size in parameter.shape] for header in headers), strict=True)
    return RankFamily(family, _terms(divided, axes), of_many, _terms(list(dimensions), axes))


def _whole(numbers: np.ndarray) -> bool:
    return bool((np.abs(numbers - np.rint(numbers)) <= 1e-4 + 1e-15 * np.abs(numbers)).all())


def _differs_by_mesh(header: Header, other: Header) -> bool:
    """Whether two headers are equal but for the mesh, the groups of ranks that follow from it, and shapes of parameters."""
    if any(axis not in AXES for group in header.groups for axis in group.axis.split("+")):
        return False
    expected = replace(_on_mesh(other, header.strategy.mesh), updated=header.updated)
    parameters = [[(len(p.shape), p.element_bytes, p.module) for p in head.updated] for head in (header, other)]
    return expected == header and parameters[0] == parameters[1]


def _shapes(header: Header) -> CallShapes:
    """The shapes of what the optimizer updates, as those of a call."""
    return tuple((parameter.shape,) for parameter in header.updated)


def _reshaped(parameters: Sequence[UpdatedParameter], dimensions: np.ndarray) -> tuple[UpdatedParameter, ...]:
    """The parameters with these dimensions, one parameter after the other."""
    sizes = iter(np.rint(dimensions).astype(np.int64).tolist())
    return tuple(replace(parameter, shape=tuple(islice(sizes, len(parameter.shape)))) for parameter in parameters)


def _on_mesh(header: Header, mesh: Mesh) -> Header:
    """The header of the first rank at the same position along the pipeline of another mesh."""
    groups = tuple(group_along(mesh, *group.axis.split("+")) for group in header.groups)
    position = header.strategy.mesh.coordinates(header.rank)["pp"]
    return replace(header, strategy=header.strategy.but(mesh=mesh), groups=groups, rank=first_rank(mesh, position))


def first_rank(mesh: Mesh, position: int) -> int:
    """The first rank of a mesh at a position along its pipeline."""
    return position * (mesh.devices // mesh.pp)


def _shrinks(recorded: Sequence[RecordedStep], edge: GridEdge) -> bool:
    """Whether no count grows with the degree, none falls by more than the degree, and what multiplies is divided once."""
    few, many = recorded[edge.low], recorded[edge.high]
    a, b = (without_steps(step.trace)[step.trace.sequence.operation] for step in (few, many))
    counted = np.array(sorted(few.of_many), dtype=np.int64)
    a[counted, _KERNELS] = b[counted, _KERNELS] = 0
    products = (a[:, _FACTORS] != b[:, _FACTORS]).sum(axis=1)[a[:, _FLOPS] > 0]
    memory = a[:, _WORKSPACE], b[:, _WORKSPACE]
    whole_or_divided = (memory[0] == memory[1]) | (memory[0] * edge.fewer == memory[1] * edge.more)
    columns = [(a, b), (few.trace.storages.size_bytes, many.trace.storages.size_bytes)]
    return bool(
        (a[:, _KERNELS] == b[:, _KERNELS]).all()
        and (products <= 1).all()
        and whole_or_divided.all()
        and all((x >= y).all() and (y * edge.more >= x * edge.fewer).all() for x, y in columns)
    )


def _of_many(family: TraceFamily, recorded: Sequence[Mapping[int, Counted]]) -> dict[int, ManyTensors] | None:
    """The tensors of operations over many; None where two positions of one operation, or two meshes, differ in more than
    numbers of elements."""
    lists: dict[int, tuple[Counted | None, ...]] = {}
    for position, operation in enumerate(family.sequence.operation.tolist()):
        counted = tuple(of_many.get(position) for of_many in recorded)
        if lists.setdefault(operation, counted) != counted:
            return None
    of_many = {}
    for operation, counted in lists.items():
        if not any(counted):
            continue
        times = {tuple(count for count, _ in pairs) if pairs is not None else None for pairs in counted}
        common = times.pop()
        if times or common is None:
            return None
        elements = list(zip(*([size for _, size in pairs or ()] for pairs in counted), strict=True))
        of_many[operation] = ManyTensors(common, _terms(elements, family.axes))
    return of_many


def _each_once(trace: Trace) -> Trace:
    """The trace with each distinct operation once, in the order in which they first run, as in a recording: some are equal on
    one mesh and not on another."""
    old, index = trace.operations, dict[tuple[object, ...], int]()
    numbers = (column.tolist() for column in (old.kind, old.group, old.channels_last))
    rows = list(zip(old.name, old.dtype, *numbers, map(tuple, old.values.tolist()), strict=True))
    used, first = np.unique(trace.sequence.operation, return_index=True)
    number, kept = np.zeros(len(rows), dtype=np.int32), list[int]()
    for row in used[np.argsort(first)].tolist():
        number[row] = index.setdefault(rows[row], len(index))
        kept += [row] if number[row] == len(kept) else []
    operations = old.take(np.array(kept, dtype=np.int64))
    sequence = replace(trace.sequence, operation=number[trace.sequence.operation])
    return replace(trace, operations=operations, sequence=sequence)


def _terms(sizes: Sequence[tuple[int, ...]], axes: tuple[Axis, ...]) -> np.ndarray:
    """Coefficients of numbers over the grid. Shape (numbers, terms)."""
    points = [len(axis.points) for axis in axes]
    values = np.array(sizes, dtype=np.int64).reshape(-1, *points)
    return forward_differences(values, len(points)).reshape(len(sizes), prod(points))
