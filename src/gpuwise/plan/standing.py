"""Standing: the options of a search inside and outside the limits of a request, with their chances, ranked by the objective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.notes import Note, rejections
from gpuwise.plan.economics.terms import YEAR_S
from gpuwise.plan.option import Option
from gpuwise.plan.priced import PricedOptions
from gpuwise.plan.ranking.chance import chance_inside
from gpuwise.plan.ranking.columns import BoolArray, FloatArray
from gpuwise.plan.ranking.objectives import ranked
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.units import format_duration, format_usd

# Without a deadline nothing longer than this is offered: a free tier would win every ranking with a decade of work.
_NO_DEADLINE_S = YEAR_S


@dataclass(frozen=True, eq=False)
class Standing:
    """How options stand under the limits of a request.

    Attributes:
        priced: the options.
        request: its limits, objective and confidence.
        chances: by row, the probability to keep both limits.
        in_time: by row, the probability to keep the deadline.
        inside: by row, whether the expected time and cost are inside the limits and the price is current.
    """

    priced: PricedOptions
    request: Request
    chances: FloatArray
    in_time: FloatArray
    inside: BoolArray

    @classmethod
    def of(cls, priced: PricedOptions, request: Request) -> Standing:
        """The chances and sides of all options."""
        columns = priced.columns
        deadline_h = None if request.deadline_s is None else request.deadline_s / 3600
        late = columns.hours > (request.deadline_s or _NO_DEADLINE_S) / 3600
        dear = columns.usd > (np.inf if request.budget_usd is None else request.budget_usd)
        in_time = chance_inside(priced.spreads, deadline_h=deadline_h, budget_usd=None)
        chances = in_time
        if request.budget_usd is not None:
            chances = chance_inside(priced.spreads, deadline_h=deadline_h, budget_usd=request.budget_usd)
        return cls(priced, request, chances, in_time, ~(late | dear | (priced.stale & (not request.stale))))

    def option(self, row: int) -> Option:
        """An option with its chances."""
        return replace(self.priced.options[row], chance=float(self.chances[row]), finish_probability=float(self.in_time[row]))

    def ranking(self) -> list[int]:
        """All rows, best first; those outside the limits follow the others.

        Options that `gpuwise train` can run come first, unless the request mixes them. Among each kind, those come first whose
        chance to keep both limits is at least the requested confidence. Then the objective decides, and its tie-breaks.
        """
        behind = self.priced.obstacle & (not self.request.xla)
        tier = 4 * (~self.inside).astype(np.int64) + 2 * behind + (self.chances < self.request.confidence)
        return ranked(self.priced.columns, self.request.objective, tier=tier).tolist()

    def best_inside(self) -> list[Option]:
        """The options inside the limits, best first."""
        return [self.option(row) for row in self.ranking()[: int(self.inside.sum())]]

    def reject(self, rejected: Rejections) -> None:
        """Counts the options outside the limits, with their distance."""
        for row in np.flatnonzero(~self.inside).tolist():
            option = self.priced.options[row]
            problem = outside(option, self.request)
            assert problem is not None
            reason, detail, distance = problem
            rejected.add(reason, option.item, detail, distance=distance, offer=option.offer)

    def options(self, rows: Iterable[int]) -> list[Option]:
        """Some options with their chances."""
        return [self.option(row) for row in rows]


def outside(option: Option, request: Request) -> tuple[Note, str, float] | None:
    """Why an option is outside the limits, its distance in words and as a number; None inside."""
    if option.hours > (request.deadline_s or _NO_DEADLINE_S) / 3600:
        reason = rejections.past_the_deadline() if request.deadline_s else rejections.over_a_year()
        return reason, format_duration(option.hours * 3600), option.hours
    usd = option.usd.value
    if request.budget_usd is not None and usd > request.budget_usd:
        return rejections.over_budget(), format_usd(usd), usd
    if option.offer.stale and not request.stale:
        return rejections.price_over_a_year_old(), f"{format_usd(usd)} at the price of {option.offer.as_of}", usd
    return None
