"""The table of a plan that says when buying a machine beats renting: the plans of the table, and the best of each chip."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from gpuwise.plan.break_even import BreakEven, cheapest_of_each_chip
from gpuwise.plan.owned_machine import OwnedMachine
from gpuwise.report.parts import columns, heading
from gpuwise.units import format_usd, rounded

_COLUMNS = ("bought", "loses", "against", "a run", "electricity", "hours a week")
_NARROW = (("bought", "loses"), ("against",), ("a run", "electricity"), ("hours a week",))


def break_even(machines: Sequence[OwnedMachine]) -> list[RenderableType]:
    """Hours of work a week, over its lifetime, from which on each bought machine is cheaper than each rental."""
    rows = []
    for machine in machines:
        if machine.purchase_usd is None or machine.resale_usd is None or machine.lifetime_years is None:
            continue
        name = f"{machine.count:g} x {machine.device}"
        loses = f"{format_usd(machine.purchase_usd - machine.resale_usd)} in {machine.lifetime_years:g} years"
        for row in _compared(machine):
            hours = "never" if row.hours_a_week is None else rounded(row.hours_a_week)
            rental = row.rental if row.rank is None else f"{row.rank}: {row.rental}"
            rows.append([name, loses, rental, format_usd(row.usd), format_usd(row.own_usd), hours])
            name = loses = ""
    if not rows:
        return []
    title = "bought against the cheapest rental of each chip: hours of work a week from which on buying is cheaper"
    return [
        heading(title),
        columns(_COLUMNS, rows, right=("a run", "electricity", "hours a week"), wide="against", narrow=_NARROW),
    ]


def _compared(machine: OwnedMachine) -> list[BreakEven]:
    """The cheapest rental of each chip; those of the table where nothing else is known."""
    return cheapest_of_each_chip(machine.break_even_offers or machine.break_even)
