"""The verdict on this machine's CPU as text, above a plan's table."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from gpuwise.plan.cpu.enough import NOT_ENOUGH, CpuEnough
from gpuwise.report.parts import indented


def cpu_enough(verdict: CpuEnough | None) -> list[RenderableType]:
    """The sentence and its reasons where a CPU is or may be enough; nothing where it is not."""
    if verdict is None or verdict.verdict == NOT_ENOUGH:
        return []
    return [Text(f"\n{verdict.text}", style="bold"), *(indented(note.text) for note in verdict.notes[1:])]
