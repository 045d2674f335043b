"""SweepResult as text: machines for many runs, best first, and why."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from gpuwise.plan.sweep.types import SweepPlan, SweepResult
from gpuwise.report.parts import UNKNOWN, columns, notes, offer_words, percent, span
from gpuwise.units import format_duration, format_usd

_COLUMNS = ("", "machines", "offer", "terms", "at once", "busy alone", "time", "money", "90 % interval", "one at a time")
_NARROW = (
    ("", "at once"),
    ("machines", "terms"),
    ("offer", "busy alone"),
    ("time", "one at a time"),
    ("money", "90 % interval"),
)
_RIGHT = ("at once", "busy alone", "time", "money", "one at a time")
CHOSEN = "✓"


def sweep_report(result: SweepResult) -> Group:
    best = result.best
    each = f"{format_duration(best.run_hours * 3600)} each on {best.devices_per_run} x {best.device}"
    title = f"{result.job}: {result.runs:,} runs of {each}."
    table = columns(_COLUMNS, [_row(plan) for plan in result.plans], right=_RIGHT, wide="offer", narrow=_NARROW)
    out = [f"{reason}: {count:,}" for reason, count in result.rejected.items()]
    return Group(
        Text(title, style="bold"),
        Text(""),
        table,
        *notes(f"why {CHOSEN}", result.why),
        *notes("* gpuwise train cannot run these", [f"{p.rank}: {p.train_obstacle}" for p in result.plans if p.train_obstacle]),
        *notes("not in the table", out),
        *notes("assumed", result.assumptions),
    )


def _at_once(plan: SweepPlan) -> str:
    """'8 (2 a device)', '2 (4 devices each)'"""
    runs = plan.machines * (plan.devices_each // plan.devices_per_run) * plan.copies
    return f"{runs} ({plan.copies} a device)" if plan.devices_per_run == 1 else f"{runs} ({plan.devices_per_run} devices each)"


def _row(plan: SweepPlan) -> list[str]:
    mark = CHOSEN if plan.rank == 1 else str(plan.rank)
    alone = UNKNOWN if plan.one_at_a_time_usd is None else format_usd(plan.one_at_a_time_usd)
    return [
        mark + "*" * bool(plan.train_obstacle),
        f"{plan.machines} x {plan.devices_each} {plan.device}",
        offer_words(plan.offer),
        plan.offer.terms,
        _at_once(plan),
        percent(plan.busy),
        format_duration(plan.hours.value * 3600),
        format_usd(plan.usd.value),
        span(plan.usd, format_usd),
        alone,
    ]
