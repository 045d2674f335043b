"""The smallest change that fits, as text."""

from __future__ import annotations

from rich.console import RenderableType

from gpuwise.report.parts import heading, indented, notes, rate
from gpuwise.report.plain import Record, number, part, text, texts
from gpuwise.units import format_bytes, format_duration


def answer_report(answer: Record) -> list[RenderableType]:
    """The smallest change that fits, its step, what it changes, and the commands to paste.

    Arguments:
        answer: as gpuwise.plan.fit.change.FittingChange.to_dict has it.
    """
    time, throughput = part(answer, "step_time_s"), part(answer, "throughput")
    value, low, high = (format_duration(number(time, name) or 0.0) for name in ("value", "low", "high"))
    pace = rate(number(throughput, "value") or 0.0, text(throughput, "unit"))
    change = "changes what is trained" if answer.get("changes_training") else "trains the same"
    size = format_bytes(number(answer, "device_bytes") or 0)
    lines = [f"a step takes {value} ({low} to {high}), {pace}, in {size}; {change}", *texts(answer, "notes")]
    commands = [command for name in ("command", "run_command") if (command := text(answer, name))]
    return [
        *notes(f"fits with {', '.join(texts(answer, 'techniques'))}", lines),
        heading("the smallest change that fits; to see it, and to run it there"),
        *map(indented, commands),
    ]
