"""Objectives: what the first plan is the best in, and how ties are broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuwise.plan.ranking.columns import FloatArray, IntArray, PlanColumns

# By objective: the column that it minimises. Money is compared to the cent, so that time decides among equal prices.
_COLUMN: dict[str, Callable[[PlanColumns], FloatArray]] = {
    "cheapest": lambda columns: np.round(columns.usd, 2),
    "fastest": lambda columns: columns.hours,
    "samples-per-dollar": lambda columns: columns.usd_per_sample,
    "least-memory": lambda columns: columns.memory_bytes,
    "least-energy": lambda columns: columns.energy_j,
}


def ranked(columns: PlanColumns, objective: str, *, tier: IntArray | None = None) -> IntArray:
    """The rows, best first.

    Plans of a lower tier come first, then those with the least of what the objective minimises. Ties go to the cheaper plan
    (to the cent), then the faster, then the cheaper to the last digit, then the earlier row. Unknown figures come last.

    Arguments:
        objective: one of gpuwise.plan_settings.OBJECTIVES.
        tier: by row; None puts all into one.
    """
    keys = (columns.usd, columns.hours, np.round(columns.usd, 2), _COLUMN[objective](columns))
    tiers = np.zeros(len(columns), dtype=np.int64) if tier is None else tier
    return np.lexsort((*keys, tiers))  # the last key counts most; nan is largest, and the sort is stable
