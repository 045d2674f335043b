"""What would fit, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from gpuwise.report.parts import heading, indented, notes, rate
from gpuwise.units import format_bytes, format_duration


def answer_report(answer: Mapping[str, Any]) -> list[RenderableType]:
    """The smallest change that fits, its step, what it changes, and the commands to paste.

    Arguments:
        answer: as gpuwise.plan.fit.change.FittingChange.to_dict has it.
    """
    time, throughput = answer["step_time_s"], answer["throughput"]
    interval = f"{format_duration(time['low'])} to {format_duration(time['high'])}"
    change = "changes what is trained" if answer["changes_training"] else "trains the same"
    lines = [
        f"a step takes {format_duration(time['value'])} ({interval}), {rate(throughput['value'], throughput['unit'])}, "
        f"in {format_bytes(answer['device_bytes'])}; {change}"
    ]
    parts: list[RenderableType] = [*notes(f"fits with {', '.join(answer['techniques'])}", [*lines, *answer["notes"]])]
    commands = [command for command in (answer["command"], answer["run_command"]) if command]
    parts += [heading("the smallest change that fits; to see it, and to run it there"), *map(indented, commands)]
    return parts
