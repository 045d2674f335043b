"""What the shapes of tensors on several meshes show: which dimensions the degree of an axis divides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from gpuwise.trace.family import Axis
from gpuwise.trace.parallel.recorded_rows import CallShapes, Shape


@dataclass(frozen=True)
class MeshAxis(Axis):
    """The degree of an axis of the mesh, recorded at `start` and `start + step`: counts are a + c/degree."""

    def basis(self, value: int) -> list[float]:
        """Newton's basis in 1/degree."""
        first, second = (Fraction(1, point) for point in self.points)
        return [1.0, float((Fraction(1, value) - first) / (second - first))]


@dataclass(frozen=True)
class GridEdge:
    """Two points of a grid of meshes that differ in the degree of one axis.

    Attributes:
        low, high: indices of the points, in the order of the grid.
        fewer, more: their degrees along the axis.
    """

    low: int
    high: int
    fewer: int
    more: int


def grid_edges(axes: Sequence[Axis]) -> list[GridEdge]:
    """All edges of the grid of these axes."""
    grid = list(product(*(axis.points for axis in axes)))
    edges = []
    for number, axis in enumerate(axes):
        for low, point in enumerate(grid):
            for fewer, more in zip(axis.points, axis.points[1:], strict=False):
                if point[number] == fewer:
                    high = grid.index((*point[:number], more, *point[number + 1 :]))
                    edges.append(GridEdge(low, high, fewer, more))
    return edges


def divided_dimensions(calls: Sequence[Sequence[CallShapes]], axes: Sequence[Axis]) -> list[tuple[int, ...]] | None:
    """The sizes, over the grid of the axes, of the dimensions that a degree divides.

    Arguments:
        calls: of each point of the grid, the shapes of each call.

    None where elements are not known to be a + c/degree: a tensor with two divided dimensions, one that grows, or one whose
    sizes at two degrees are not those of an even division.
    """
    if len({len(of_point) for of_point in calls}) != 1:
        return None
    edges = grid_edges(axes)
    divided: set[tuple[int, ...]] = set()
    for call in set(zip(*calls, strict=True)):
        for shapes in _tensors(call):
            if shapes is None or not all(_follows(shapes[edge.low], shapes[edge.high], edge) for edge in edges):
                return None
            for sizes in zip(*shapes, strict=True):
                grows = any(sizes[edge.low] < sizes[edge.high] for edge in edges)
                shrinks = any(sizes[edge.low] > sizes[edge.high] for edge in edges)
                if grows and shrinks:
                    return None
                if shrinks:
                    divided.add(sizes)
    return sorted(divided)


def _tensors(call: Sequence[CallShapes]) -> Iterator[Sequence[Shape] | None]:
    """The shapes of each tensor of a call at the points of the grid; None where they are not comparable.

    A list with as many equal tensors as there are ranks is one tensor, with a row for each rank.
    """
    if len({len(arguments) for arguments in call}) != 1:
        yield None
        return
    for tensors in zip(*call, strict=True):
        if len({len(shapes) for shapes in tensors}) == 1:
            yield from zip(*tensors, strict=True)
        elif all(len(set(shapes)) == 1 for shapes in tensors):
            yield [(len(shapes), *shapes[0]) for shapes in tensors]
        else:
            yield None


def _follows(few: Shape, many: Shape, edge: GridEdge) -> bool:
    """Whether a tensor's elements are a + c/degree: few and many are its shape at two degrees.

    A dimension that is not exactly divided may be the length of a buffer, of divided and of whole tensors.
    """
    if len(few) != len(many):
        return False
    grown = [(a, b) for a, b in zip(few, many, strict=True) if a < b]
    shrunk = [(a, b) for a, b in zip(few, many, strict=True) if a > b]
    if any(b * edge.fewer != a * edge.more for a, b in grown):
        return False
    if all(b * edge.more == a * edge.fewer for a, b in shrunk):
        return 0 <= len(shrunk) - len(grown) <= 1
    return len(shrunk) == 1 and not grown and shrunk[0][1] * edge.more >= shrunk[0][0] * edge.fewer
