"""A PlanResult as text: the ranked table with the chosen row ticked, why, what was rejected, every assumption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.types import Plan, PlanResult, Rejection
from gpuwise.report.parts import columns, heading, notes, offer_words, percent, span, strategy_words
from gpuwise.units import format_count, format_duration, format_usd

_COLUMNS = ("", "device", "offer", "terms", "strategy", "time", "money", "90 % interval", "in time")
_NARROW = (("",), ("device", "terms"), ("offer", "strategy"), ("time", "in time"), ("money", "90 % interval"))
_RIGHT = ("time", "money", "in time")
CHOSEN = "✓"
_MIND = ("stale price", "price caveat", "needs ", "reserved:")  # how reasons that warn begin


def plan_report(result: PlanResult) -> Group:
    best = result.best
    parts: list[RenderableType] = [
        Text(f"{best.job}: {format_count(best.samples)} samples, {best.steps:,} steps of "
             f"{best.strategy.global_batch:,}. {result.considered:,} offers considered, "
             f"{result.priced:,} strategies priced.", style="bold"),
        Text(""),
        columns(_COLUMNS, [_row(plan) for plan in result.plans], right=_RIGHT, wide="strategy", narrow=_NARROW),
    ]  # fmt: skip
    parts += notes(f"why {CHOSEN}", best.reasons)
    parts += notes("the others", [f"{plan.rank}: {plan.reasons[0]}" for plan in result.plans[1:] if plan.reasons])
    parts += notes("mind, of the others", mind(result.plans[1:]))
    parts += rejected(result.rejected)
    parts += notes("assumed", [*result.assumptions, *best.assumptions])
    return Group(*parts)


def mind(plans: Sequence[Plan]) -> list[str]:
    """What to know before one of these is chosen, with the ranks that it holds for."""
    found: dict[str, list[str]] = {}
    for plan in plans:
        for reason in plan.reasons:
            if reason.startswith(_MIND):
                found.setdefault(reason, []).append(str(plan.rank))
    return [f"{', '.join(ranks)}: {reason}" for reason, ranks in found.items()]


def rejected(reasons: Mapping[str, Rejection]) -> list[RenderableType]:
    """Counts by reason, most frequent first, with the offers that came nearest."""
    if not reasons:
        return []
    rows = [[f"{item.count:,}", reason, "; ".join(item.examples)]
            for reason, item in sorted(reasons.items(), key=lambda pair: -pair[1].count)]  # fmt: skip
    return [heading("rejected"), columns(("offers", "because", "nearest"), rows, right=("offers",), wide="nearest",
                                       narrow=(("offers",), ("because", "nearest")))]  # fmt: skip


def _row(plan: Plan) -> list[str]:
    offer = plan.offer
    stale = " stale" if offer.stale else ""
    return [
        CHOSEN if plan.rank == 1 else str(plan.rank),
        f"{plan.count:g} x {plan.device}",
        offer_words(offer),
        offer.terms + stale,
        strategy_words(plan.strategy),
        format_duration(plan.hours * 3600),
        format_usd(plan.usd.value),
        span(plan.usd, format_usd),
        percent(plan.finish_probability),
    ]
