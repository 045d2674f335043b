"""A LaunchResult as text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Group

from gpuwise.launch.target import target
from gpuwise.report.parts import grid, heading, notes
from gpuwise.units import format_duration, format_usd

if TYPE_CHECKING:
    from gpuwise.results.launching import LaunchResult


def launch_report(result: LaunchResult) -> Group:
    """What was written, what it will take, and how to start it."""
    plan = result.plan
    machines = f" on {plan.machines} machines" if plan.machines > 1 else ""
    where = f"{plan.offer.provider} {plan.offer.instance}, {plan.offer.terms}"
    interval = f"{format_usd(plan.usd.low)} to {format_usd(plan.usd.high)}"
    rows = [
        ("trains", f"{plan.job}: {plan.steps:,} steps on {plan.count:g} x {plan.device}{machines}"),
        ("planned at", f"{where}, price of {plan.price_as_of}"),
        ("forecast", f"{format_duration(plan.hours * 3600)}, {format_usd(plan.usd.value)} ({interval})"),
        ("a stop", f"saves within {format_duration(result.save_s)}; {_end(result)}"),
        ("limits", f"{format_duration(result.time_limit_s)}, {result.restarts} restarts"),
        ("run in", result.run_folder),
        ("files", ", ".join([*result.digests, "launch.toml"])),
    ]
    folder = shlex.quote(str(result.folder))
    start = [f"gpuwise launch {folder} --go", f"or yourself: cd {folder} && {shlex.join(result.submit)}"]
    return Group(
        heading(f"{result.folder}, for {result.target}"),
        grid(rows),
        *notes("to know", result.notes),
        *notes("start it", start if result.submit else []),
    )


def _end(result: LaunchResult) -> str:
    if target(result.target).default_grace_s == 0:
        return f"ends by itself {format_duration(result.grace_s)} before the limit"
    return f"killed {format_duration(result.grace_s)} after the signal"
