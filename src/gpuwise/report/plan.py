"""A PlanResult as text: the ranked table with the chosen row ticked, why, what was rejected, every assumption."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.owned_machine import OwnedMachine
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.rejection import Rejection
from gpuwise.plan.types import Plan
from gpuwise.report.break_even import break_even
from gpuwise.report.cpu_enough import cpu_enough
from gpuwise.report.own_or_cloud import own_or_cloud
from gpuwise.report.parts import UNKNOWN, columns, heading, notes, offer_words, percent, span, strategy_words
from gpuwise.report.picture import shortened
from gpuwise.report.plan_why import why_parts
from gpuwise.units import format_count, format_duration, format_usd, rounded

_COLUMNS = ("", "device", "offer", "terms", "strategy", "time", "money", "90 % interval", "chance")
_NARROW = (("",), ("device", "terms"), ("offer", "strategy"), ("time", "chance"), ("money", "90 % interval"))
_RIGHT = ("time", "money", "chance")
CHOSEN = "✓"
NOT_FOR_TRAIN = "*"
MAY_RISE = "!"
MAY_MISS = "?"
ON_FRONT = "◆"
_LONGEST_EXAMPLE = 110  # characters
_WARNINGS = ("stale-price", "price-caveat", "reserved-term")  # kinds of reasons


def plan_report(result: PlanResult) -> Group:
    best = result.best
    parts: list[RenderableType] = [
        Text(
            f"{best.job}: {format_count(best.samples)} samples, {best.steps:,} steps of "
            f"{best.strategy.global_batch:,}. {_searched(result)}.",
            style="bold",
        ),
        *cpu_enough(result.cpu_enough),
        Text(""),
        columns(
            _COLUMNS,
            [
                *(_row(plan, result) for plan in result.plans),
                *(_out_row(m) for m in result.at_hand if m.rank is None),
            ],
            right=_RIGHT,
            wide="strategy",
            narrow=_NARROW,
        ),
    ]
    parts += notes(f"why {CHOSEN}", best.reasons)
    parts += notes("the others", [f"{plan.rank}: {plan.reasons[0]}" for plan in result.plans[1:] if plan.reasons])
    parts += notes(f"{NOT_FOR_TRAIN} gpuwise train cannot run these", not_for_train(result.plans))
    parts += notes(f"{MAY_MISS} may miss the deadline or the budget", may_miss(result.plans))
    parts += notes(f"{ON_FRONT} no plan is better in time, money and energy together", on_front(result))
    parts += notes(f"{MAY_RISE} counted at a likely price: the listed one may not hold", may_rise(result.plans))
    parts += notes("mind, of the others", mind(result.plans[1:]))
    parts += notes("bought", [text for machine in result.at_hand if (text := bought(machine))])
    parts += break_even(result.at_hand)
    parts += notes("your machines or the cloud", own_or_cloud(result))
    parts += rejected(result.rejected, considered=result.considered)
    for answer in result.why:
        parts += why_parts(answer)
    parts += notes("assumed", [*result.assumptions, *best.assumptions])
    return Group(*parts)


def _searched(result: PlanResult) -> str:
    """What the plans were chosen from."""
    if result.composed:
        return f"{result.considered:,} offers and {format_count(result.composed)} strategies considered"
    return f"{result.considered:,} offers considered, {result.priced:,} strategies priced"


def mind(plans: Sequence[Plan]) -> list[str]:
    """What to know before one of these is chosen, with the ranks that it holds for."""
    ranks_of: dict[str, list[str]] = {}
    for plan in plans:
        for note in plan.reason_notes:
            if note.kind in _WARNINGS:
                ranks_of.setdefault(note.text, []).append(str(plan.rank))
    return [f"{', '.join(ranks)}: {reason}" for reason, ranks in ranks_of.items()]


def not_for_train(plans: Sequence[Plan]) -> list[str]:
    """What stands in the way, with the ranks that it holds for."""
    ranks: dict[str, list[str]] = {}
    for plan in plans:
        if plan.train_obstacle:
            ranks.setdefault(plan.train_obstacle, []).append(str(plan.rank))
    return [f"{', '.join(of)}: {obstacle}" for obstacle, of in ranks.items()]


def may_rise(plans: Sequence[Plan]) -> list[str]:
    """The listed and the likely price of a device-hour, and what the run costs if the listed one holds."""
    lines = []
    for plan in plans:
        if plan.price_may_rise and plan.usd_per_hour is not None and plan.usd_at_listed_price is not None:
            listed, likely = plan.offer.usd_per_device_hour, plan.usd_per_hour.value / plan.offer.devices
            lines.append(
                f"{plan.rank}: {format_usd(listed)} a device-hour is listed, {format_usd(likely)} counted; "
                f"{format_usd(plan.usd_at_listed_price)} if the listed price holds"
            )
    return lines


def may_miss(plans: Sequence[Plan]) -> list[str]:
    """The plans that are less likely to keep the limits than requested."""
    risky = [plan for plan in plans if _may_miss(plan)]
    return [f"{plan.rank}: {_chance(plan)} likely to keep the limits" for plan in risky]


def _chance(plan: Plan) -> str:
    """Rounded down where it is not enough, so that 89.7 % is not shown as the 90 % that were requested."""
    return percent(math.floor(100 * plan.chance) / 100 if _may_miss(plan) else plan.chance)


def _may_miss(plan: Plan) -> bool:
    return any(note.kind == "may-miss" for note in plan.reason_notes)


def on_front(result: PlanResult) -> list[str]:
    """The ranks of the plans on the Pareto front, and how many more there are."""
    if result.front is None:
        return []
    ranks = sorted(point.rank for point in result.front.points if point.rank is not None)
    more = len(result.front.points) - len(ranks)
    words = [", ".join(map(str, ranks))] if ranks else []
    words += [f"{more} outside of the table"] if more else []
    return [f"{' and '.join(words)}: --plot front.svg draws them, --plot - prints them"]


def bought(machine: OwnedMachine) -> str:
    """When a machine named with --own would have paid for itself; empty where nothing is known."""
    if machine.purchase_usd is None or machine.usd is None:
        return ""
    head = f"{machine.count:g} × {machine.device} for about {format_usd(machine.purchase_usd)}"
    against = f"{machine.rental}; its electricity costs {format_usd(machine.usd)} a run"
    if machine.break_even_months is None:
        return f"{head} never pays for itself against {against}"
    return (
        f"{head} pays for itself after {months(machine.break_even_months)} of such runs without a pause, "
        f"resale not counted, against {against}"
    )


def months(value: float) -> str:
    """'4.2 months'; above ten years '32 years'."""
    return f"{rounded(value)} months" if value <= 120 else f"{value / 12:,.0f} years"


def rejected(reasons: Mapping[str, Rejection], *, considered: int) -> list[RenderableType]:
    """Counts by reason, most frequent first, with the offer that came nearest."""
    if not reasons:
        return []
    rows = [
        [f"{item.count:,}", reason, shortened(item.examples[0], _LONGEST_EXAMPLE) if item.examples else ""]
        for reason, item in sorted(reasons.items(), key=lambda pair: -pair[1].count)
    ]
    return [
        heading(f"of {considered:,} offers, not in the table"),
        columns(
            ("offers", "because", "nearest"),
            rows,
            right=("offers",),
            wide="nearest",
            narrow=(("offers",), ("because", "nearest")),
        ),
    ]


def _row(plan: Plan, result: PlanResult) -> list[str]:
    offer = plan.offer
    stale = " stale" if offer.stale else ""
    mark = CHOSEN if plan.rank == 1 else str(plan.rank)
    mark += NOT_FOR_TRAIN * bool(plan.train_obstacle) + MAY_RISE * plan.price_may_rise + MAY_MISS * _may_miss(plan)
    mark += ON_FRONT * (result.front is not None and any(point.rank == plan.rank for point in result.front.points))
    return [
        mark,
        f"{plan.count:g} x {plan.device}",
        offer_words(offer, plan.count),
        offer.terms + stale,
        strategy_words(plan.strategy),
        format_duration(plan.hours * 3600),
        _money(plan.usd.value),
        _interval(plan),
        _chance(plan),
    ]


def _out_row(machine: OwnedMachine) -> list[str]:
    """A machine at hand that is not in the ranking: why, and what the job would take on it."""
    time = UNKNOWN if machine.hours is None else format_duration(machine.hours * 3600)
    money = UNKNOWN if machine.usd is None else _money(machine.usd)
    return [
        "",
        f"{machine.count:g} x {machine.device}",
        offer_words(machine.offer),
        machine.offer.terms,
        f"not ranked: {machine.reason}",
        time,
        money,
        "",
        "",
    ]


def _money(usd: float) -> str:
    """Zero is written as such, not as cents."""
    return "$0" if abs(usd) < 0.005 else format_usd(usd)


def _interval(plan: Plan) -> str:
    """Of the money; of the time where that is what matters: free and owned machines, and CPUs."""
    by_time = plan.offer.terms in ("free", "owned") or plan.on_cpu
    if by_time and plan.hours_interval is not None:
        return span(plan.hours_interval, lambda hours: format_duration(hours * 3600))
    return span(plan.usd, format_usd)
