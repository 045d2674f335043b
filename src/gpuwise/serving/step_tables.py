"""Table: seconds as a function of a whole number, computed at few numbers and linear in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

MOST_READ = 1 << 16  # whole numbers between points whose value a table keeps
STEPS = 4  # points of a table between a number and its double: times of products rise in steps of tiles
Position: TypeAlias = tuple[int, float]  # index of the point at or below a number, and how far it is from there to the next


def _points() -> list[int]:
    """0, 1, 2, ..., and from there on STEPS numbers to each double."""
    points = [0]
    value = 1.0
    while value < 1 << 22:
        if round(value) > points[-1]:
            points.append(round(value))
        value *= 2 ** (1 / STEPS)
    return points


POINTS = _points()


def position_of(number: float) -> Position:
    """Where a number is among the points of tables."""
    index = bisect_right(POINTS, number) - 1
    low = POINTS[index]
    return (index, 0.0) if low == number else (index, (number - low) / (POINTS[index + 1] - low))


class Table:
    """A function of a whole number.

    Arguments:
        function: called once for each point that is needed.
    """

    def __init__(self, function: Callable[[int], float]) -> None:
        self._function = function
        self._values: dict[int, float] = {}  # by index of the point
        self._read: dict[int, float] = {}

    def __call__(self, number: int) -> float:
        """The value at a number; kept, since loads repeat numbers."""
        seconds = self._read.get(number)
        if seconds is None:
            seconds = self.at(position_of(number))
            if len(self._read) < MOST_READ:
                self._read[number] = seconds
        return seconds

    def at(self, position: Position) -> float:
        """The value at a position among the points."""
        index, share = position
        values = self._values
        low_s = values.get(index)
        if low_s is None:
            low_s = values[index] = self._function(POINTS[index])
        if not share:
            return low_s
        high_s = values.get(index + 1)
        if high_s is None:
            high_s = values[index + 1] = self._function(POINTS[index + 1])
        return (1 - share) * low_s + share * high_s
