"""The Pareto front of options, for the picture and the JSON of a result."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuwise.plan.economics.terms import YEAR_S
from gpuwise.plan.pareto import JOULES_PER_KWH, ParetoFront, ParetoPoint
from gpuwise.plan.ranking.front import pareto_front
from gpuwise.plan.standing import Standing


def front_of(job: str, standing: Standing, *, ranks: Mapping[int, int]) -> ParetoFront:
    """The front among all options that could be used: with a current price, within the deadline or a year, and, unless the
    request mixes them, of those that `gpuwise train` can run.

    Arguments:
        ranks: rank in the table by row.
    """
    request, priced, columns = standing.request, standing.priced, standing.priced.columns
    usable = columns.hours <= max(request.deadline_s or 0.0, YEAR_S) / 3600
    if not request.stale:
        usable &= ~priced.stale
    if not request.xla and (usable & ~priced.obstacle).any():
        usable &= ~priced.obstacle
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((columns.usd[rows], columns.hours[rows]))]
    on_front = pareto_front(columns.hours[rows], columns.usd[rows], columns.energy_j[rows])
    beaten = rows[~on_front]
    return ParetoFront(
        job,
        tuple(_point(standing, row, ranks.get(row)) for row in rows[on_front].tolist()),
        tuple(zip(columns.hours[beaten].tolist(), columns.usd[beaten].tolist(), strict=True)),
        deadline_h=None if request.deadline_s is None else request.deadline_s / 3600,
        budget_usd=request.budget_usd,
    )


def _point(standing: Standing, row: int, rank: int | None) -> ParetoPoint:
    option, columns = standing.priced.options[row], standing.priced.columns
    energy_j = float(columns.energy_j[row])
    return ParetoPoint(
        option.offer,
        option.device,
        option.count,
        option.hours,
        option.usd.value,
        None if np.isnan(energy_j) else energy_j / JOULES_PER_KWH,
        inside=bool(standing.inside[row]),
        chance=float(standing.chances[row]),
        rank=rank,
    )
