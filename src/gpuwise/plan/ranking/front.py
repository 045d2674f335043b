"""The Pareto front of three costs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from gpuwise.plan.ranking.columns import BoolArray, FloatArray


def pareto_front(first: FloatArray, second: FloatArray, third: FloatArray) -> BoolArray:
    """Which rows no other row beats: none is as good in all three costs and better in one. Equal rows stay together.

    An unknown cost (nan) counts as infinite. Rows with an infinite first or second cost are never on the front.

    Method: rows are visited by their first cost. A staircase holds the second and third costs of those visited; a row is
    beaten if a step of the staircase is as low in both (H. T. Kung, F. Luccio, F. P. Preparata, "On finding the maxima of a
    set of vectors", JACM 22, 1975). O(n log n), and the moving of list entries.
    """
    costs = np.nan_to_num(np.stack([first, second, third]), nan=np.inf, posinf=np.inf)
    on_front = np.zeros(costs.shape[1], dtype=bool)
    order = np.lexsort(costs[::-1])
    order = order[np.isfinite(costs[:2, order]).all(axis=0)]
    seconds: list[float] = []  # of the staircase, rising
    thirds: list[float] = []  # falling
    last: tuple[float, float, float] | None = None
    for row, (a, b, c) in zip(order.tolist(), costs[:, order].T.tolist(), strict=True):
        if (a, b, c) == last:
            on_front[row] = True
            continue
        step = bisect_right(seconds, b)
        if step and thirds[step - 1] <= c:
            continue
        on_front[row], last = True, (a, b, c)
        begin = bisect_left(seconds, b)
        end = begin
        while end < len(thirds) and thirds[end] >= c:
            end += 1
        seconds[begin:end], thirds[begin:end] = [b], [c]
    return on_front
