"""PricedOptions: the options of a search for one amount, with all figures that no limit and no objective changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.plan.buying.plans import PlanMaker
from gpuwise.plan.option import Option
from gpuwise.plan.ranking.chance import Spreads
from gpuwise.plan.ranking.columns import BoolArray, FloatArray, PlanColumns
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched


@dataclass(frozen=True, eq=False)
class PricedOptions:
    """Options as rows.

    Attributes:
        options: without a chance to keep limits.
        rejected: offers without an option; callers copy it.
        columns, spreads: figures by row.
        obstacle: whether `gpuwise train` cannot run a row.
        stale: whether a row's price is over a year old.
    """

    options: tuple[Option, ...]
    rejected: Rejections
    columns: PlanColumns
    spreads: Spreads
    obstacle: BoolArray
    stale: BoolArray

    @classmethod
    def of(cls, options: Sequence[Option], rejected: Rejections) -> PricedOptions:
        """The columns of options."""
        hours, usd = (_column([getattr(option, name) for option in options]) for name in ("hours", "expected_usd"))
        return cls(
            tuple(options),
            rejected,
            PlanColumns(
                hours=hours,
                usd=usd,
                energy_j=_column([option.energy_j for option in options]),
                memory_bytes=_column([option.memory_bytes for option in options]),
                usd_per_sample=_column([option.usd_per_sample for option in options]),
            ),
            Spreads(
                hours=hours,
                usd=usd,
                log_hours=_column([option.log_hours for option in options]),
                log_price=_column([option.log_price for option in options]),
                usd_follows=_column([option.usd_follows for option in options]),
            ),
            np.array([bool(option.train_obstacle) for option in options], dtype=bool),
            np.array([option.offer.stale for option in options], dtype=bool),
        )


def _column(values: Sequence[float | None]) -> FloatArray:
    return np.array(values, dtype=float)  # None becomes nan


def priced_options(searched: Searched, request: Request, *, samples: int) -> PricedOptions:
    """The options for an amount. A search remembers the last amount's, so that limits and objectives change in milliseconds."""
    if samples not in searched.priced:
        rejected = Rejections()
        options = PlanMaker(searched, replace(request, deadline_s=None), samples).options(rejected)
        searched.priced.clear()
        searched.priced[samples] = PricedOptions.of(options, rejected)
    priced = searched.priced[samples]
    assert isinstance(priced, PricedOptions)
    return priced
