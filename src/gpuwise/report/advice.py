"""BuyingAdvice as text: what each machine costs a year, each job on it, and what else decides."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.advice.types import BoughtMachine, BuyingAdvice, JobHere
from gpuwise.report.parts import UNKNOWN, columns, heading, notes
from gpuwise.units import format_count, format_duration, format_usd

_COLUMNS = ("", "machine", "to buy", "at the wall", "hours a week", "a year", "purchase", "power", "rent", "pays from")
_NARROW = (
    ("", "machine"),
    ("to buy", "at the wall"),
    ("hours a week",),
    ("a year", "pays from"),
    ("purchase", "power", "rent"),
)
_JOBS = ("machine", "job", "speed", "a run", "hours a week", "power", "cost of a run")
_JOBS_NARROW = (("machine", "job"), ("speed", "power"), ("a run", "hours a week"), ("cost of a run",))
CHOSEN = "✓"
_SHOWN = 4  # machines whose remarks are shown


def advice_report(advice: BuyingAdvice) -> Group:
    parts: list[RenderableType] = [
        Text(
            "What each machine costs a year for these jobs: purchase less resale, electricity, rent of what does not run on it."
        ),
        Text(""),
        columns(
            _COLUMNS,
            [_row(machine, rank) for rank, machine in enumerate(advice.machines, 1)],
            right=_COLUMNS[2:],
            narrow=_NARROW,
        ),
        heading("each job on each machine"),
        columns(
            _JOBS,
            [row for machine in advice.machines if machine.device for row in _job_rows(machine)],
            right=_JOBS[3:],
            wide="speed",
            narrow=_JOBS_NARROW,
        ),
    ]
    parts += notes(
        "rented most cheaply",
        [f"{r.name}: {r.rental}, {format_duration(r.hours * 3600)} and {format_usd(r.usd)} a run" for r in advice.rentals],
    )
    parts += notes(f"why {CHOSEN}", [_why(advice)])
    for machine in [m for m in advice.machines if m.device][:_SHOWN]:
        resale = (
            f"resale: {format_usd(machine.resale_usd)}; without it {format_usd(machine.without_resale_usd_a_year)} a year "
            f"instead of {format_usd(machine.usd_a_year)}"
        )
        parts += notes(machine.name, [*machine.remarks, resale])
    parts += notes("left out", [f"{name}: {reason}" for name, reason in advice.left_out])
    parts += notes("assumed", advice.assumptions)
    return Group(*parts)


def _why(advice: BuyingAdvice) -> str:
    best = advice.best
    renting = next((m for m in advice.machines if not m.device), None)
    owned = [m for m in advice.machines if m.device and m.fast_enough]
    if not best.device:
        nearest = min(owned, key=lambda m: m.usd_a_year, default=None)
        than = (
            ""
            if nearest is None
            else f": {format_usd(best.usd_a_year)} a year, {nearest.name} {format_usd(nearest.usd_a_year)}"
        )
        return f"renting is cheaper than any machine of the list for so much work{than}"
    words = f"{best.name} does the mix in {_hours(best)} hours a week for {format_usd(best.usd_a_year)} a year"
    if renting is not None:
        words += f"; renting all costs {format_usd(renting.usd_a_year)}"
    return words


def _row(machine: BoughtMachine, rank: int) -> list[str]:
    even = machine.break_even_hours_a_week
    return [
        CHOSEN if rank == 1 else str(rank),
        machine.name,
        format_usd(machine.purchase_usd) if machine.device else UNKNOWN,
        f"{machine.peak_w / 1000:.2g} kW" if machine.device else UNKNOWN,
        UNKNOWN if not machine.device else _hours(machine) + ("" if machine.fast_enough else ": too slow"),
        format_usd(machine.usd_a_year),
        format_usd(machine.capital_usd_a_year) if machine.device else UNKNOWN,
        format_usd(machine.electricity_usd_a_year) if machine.device else UNKNOWN,
        format_usd(machine.rent_usd_a_year),
        UNKNOWN if not machine.device else "never" if even is None else f"{even:.3g} h a week",
    ]


def _hours(machine: BoughtMachine) -> str:
    return f"{machine.hours_a_week:.3g}"


def _job_rows(machine: BoughtMachine) -> list[list[str]]:
    rows, name = [], machine.name
    for job in machine.jobs:
        rows.append([name, job.name, *_job_cells(job)])
        name = ""
    return rows


def _job_cells(job: JobHere) -> list[str]:
    if job.hours is None or job.hours_a_week is None:
        would = f"; would fit with {job.would_fit}" if job.would_fit else ""
        cost = f"{format_usd(job.usd_a_run)} rented" if job.rented else UNKNOWN
        return [f"{job.reason}{would}", UNKNOWN, UNKNOWN, UNKNOWN, cost]
    speed = UNKNOWN if job.throughput is None else f"{format_count(job.throughput)} {job.unit}"
    power = UNKNOWN if job.wall_w is None else f"{job.wall_w:,.0f} W"
    return [speed, format_duration(job.hours * 3600), f"{job.hours_a_week:.3g}", power, format_usd(job.usd_a_run)]
