"""A curve of bounded length, and how to draw it in one line of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean


class DownsampledCurve:
    """The course of a run in at most `most` points: each the mean of as many values, which double when the points run out."""

    def __init__(self, most: int = 256):
        self._most, self._per_point = most, 1
        self._points: list[float] = []
        self._open: list[float] = []

    def add(self, value: float) -> None:
        """One value; those that are not finite are left out."""
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
        """Oldest first, the latest value always among them."""
        return self._points + ([fmean(self._open)] if self._open else [])


def sparkline(values: Sequence[float], *, cells: int, glyphs: str) -> str:
    """At most `cells` characters, low to high by `glyphs`; on a logarithmic scale where all values are above zero."""
    if not values or cells < 1:
        return ""
    count = min(cells, len(values))
    ends = [round(cell * len(values) / count) for cell in range(count + 1)]
    means = [fmean(values[low:high]) for low, high in pairwise(ends)]
    heights = [math.log(mean) for mean in means] if min(means) > 0 else means
    low, high = min(heights), max(heights)
    scale = (len(glyphs) - 1) / (high - low) if high > low else 0.0
    return "".join(glyphs[round((height - low) * scale)] for height in heights)
