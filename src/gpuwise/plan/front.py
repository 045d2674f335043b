"""The Pareto front of options, for the picture and the JSON of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuwise.plan.economics.terms import YEAR_S
from gpuwise.plan.option import Option
from gpuwise.plan.pareto import JOULES_PER_KWH, ParetoFront, ParetoPoint
from gpuwise.plan.ranking.front import pareto_front
from gpuwise.plan.request import Request
from gpuwise.plan.selection import columns_of, outside


def front_of(job: str, options: Sequence[Option], request: Request, *, ranks: Mapping[int, int]) -> ParetoFront:
    """The front among all options that could be used: with a current price, within the deadline or a year, and, unless the
    request mixes them, of those that `gpuwise train` can run.

    Arguments:
        ranks: rank in the table by the identity of an option.
    """
    longest_h = max(request.deadline_s or 0.0, YEAR_S) / 3600
    runs = [option for option in options if option.hours <= longest_h and (request.stale or not option.offer.stale)]
    if not request.xla:
        runs = [option for option in runs if not option.train_obstacle] or runs
    columns = columns_of(runs)
    on_front = pareto_front(columns.hours, columns.usd, columns.energy_j)
    order = np.lexsort((columns.usd, columns.hours))
    return ParetoFront(
        job,
        tuple(_point(runs[row], request, ranks) for row in order.tolist() if on_front[row]),
        tuple((runs[row].hours, runs[row].usd.value) for row in order.tolist() if not on_front[row]),
        deadline_h=None if request.deadline_s is None else request.deadline_s / 3600,
        budget_usd=request.budget_usd,
    )


def _point(option: Option, request: Request, ranks: Mapping[int, int]) -> ParetoPoint:
    return ParetoPoint(
        option.offer,
        option.device,
        option.count,
        option.hours,
        option.usd.value,
        None if option.energy_j is None else option.energy_j / JOULES_PER_KWH,
        inside=outside(option, request) is None,
        chance=option.chance,
        rank=ranks.get(id(option)),
    )
