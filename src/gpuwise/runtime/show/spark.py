"""A curve of bounded length, and its drawing as one line of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean


class DownsampledCurve:
    """A curve of at most `most` points. Each is the mean of the same number of values, which doubles when it is full."""

    def __init__(self, most: int = 256):
        self._most, self._per_point = most, 1
        self._points: list[float] = []
        self._open: list[float] = []

    def add(self, value: float) -> None:
        """Adds a value; non-finite values are ignored."""
        if not math.isfinite(value):
            return
        self._open.append(value)
        if len(self._open) < self._per_point:
            return
        self._points.append(fmean(self._open))
        self._open.clear()
        if len(self._points) == self._most:
            self._points = [fmean(pair) for pair in zip(self._points[::2], self._points[1::2], strict=True)]
            self._per_point *= 2

    def points(self) -> list[float]:
        """The points, oldest first; they always include the latest value."""
        return self._points + ([fmean(self._open)] if self._open else [])


def sparkline(values: Sequence[float], *, cells: int, glyphs: str) -> str:
    """Draws values as at most `cells` characters of `glyphs`, on a logarithmic scale if all values are positive.

    Arguments:
        glyphs: characters from low to high.
    """
    if not values or cells < 1:
        return ""
    count = min(cells, len(values))
    ends = [round(cell * len(values) / count) for cell in range(count + 1)]
    means = [fmean(values[low:high]) for low, high in pairwise(ends)]
    heights = [math.log(mean) for mean in means] if min(means) > 0 else means
    low, high = min(heights), max(heights)
    scale = (len(glyphs) - 1) / (high - low) if high > low else 0.0
    return "".join(glyphs[round((height - low) * scale)] for height in heights)
