"""balanced: consecutive items in parts of nearly equal cost, such as the blocks of a model in pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def balanced(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """The first item of each of `parts` runs of items: the largest sum is least; among those, sums are as even as can be.

    Arguments:
        costs: of the items, at least as many as parts.
    """
    total = [0, *accumulate(costs)]
    low, high = max(costs), total[-1]
    while low < high:
        middle = (low + high) // 2
        if _runs_needed(costs, middle) <= parts:
            high = middle
        else:
            low = middle + 1
    # The least sum of squares, over all starts of the last run, of the items before `end` in `part` runs.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for part in range(1, parts + 1):
        row: dict[int, tuple[float, int]] = {}
        for end in range(part, len(costs) - (parts - part) + 1):
            options = []
            for start in range(end - 1, part - 2, -1):
                cost = total[end] - total[start]
                if cost > low:
                    break
                if start in best[-1]:
                    options.append((best[-1][start][0] + float(cost) ** 2, start))
            if options:
                row[end] = min(options)
        best.append(row)
    starts, end = [], len(costs)
    for row in reversed(best[1:]):
        end = row[end][1]
        starts.append(end)
    return tuple(reversed(starts))


def _runs_needed(costs: Sequence[int], limit: int) -> int:
    """Runs of items, filled one after the other, whose sums stay within the limit."""
    runs, filled = 1, 0
    for cost in costs:
        if filled + cost > limit:
            runs, filled = runs + 1, 0
        filled += cost
    return runs
