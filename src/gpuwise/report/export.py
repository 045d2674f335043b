"""An exported plan as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.export.types import Exported, StepDifference
from gpuwise.report.parts import columns, heading, indented, notes, percent
from gpuwise.units import format_bytes, format_duration

_COLUMNS = ("field", "value", "match", "how", "the trainer differs")
_NARROW = (("field", "value"), ("match",), ("how", "the trainer differs"))


def export_report(result: Exported, *, with_text: bool = False) -> Group:
    """How each field is written, what the forecast differs by, and the command. with_text: the file, too."""
    rows = [(line.field, str(line.value), line.status, line.written, line.differs) for line in result.fields]
    parts: list[RenderableType] = [
        Text(f"{result.job} for {result.peer}: {result.file}", style="bold"),
        Text(""),
        columns(_COLUMNS, rows, wide="the trainer differs", narrow=_NARROW),
    ]
    if result.difference is not None:
        parts += notes("the forecast of what it trains instead", [difference_words(result.difference)])
    parts += [heading("to run it"), indented(result.command)]
    if with_text:
        parts += [heading(result.file), Text(result.text)]
    return Group(*parts)


def difference_words(difference: StepDifference) -> str:
    """'a step takes 1.2 s instead of 1 s (20 % more), in 30 GiB instead of 40 GiB of each device'"""
    (mine, theirs), (my_bytes, their_bytes) = difference.step_time_s, difference.device_bytes
    ratio = theirs / mine - 1
    change = "as long" if abs(ratio) < 0.005 else f"{percent(abs(ratio))} {'more' if ratio > 0 else 'less'}"
    fits = " and DOES NOT FIT" if difference.fits is False else ""
    return (
        f"{', '.join(difference.fields)}: a step takes {format_duration(theirs)} instead of {format_duration(mine)} "
        f"({change}), in {format_bytes(their_bytes)} instead of {format_bytes(my_bytes)} of each device{fits}"
    )
