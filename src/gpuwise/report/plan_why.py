"""A PlanWhy as text: what bounds a plan, its neighbours, what of the job would move it, and why it fell."""

from __future__ import annotations

from rich.console import RenderableType

from gpuwise.plan.why.types import JobChange, Neighbour, PlanWhy
from gpuwise.report.parts import UNKNOWN, columns, heading, indented, percent, shares
from gpuwise.units import format_duration, format_usd

_COLUMNS = ("change of the job", "time", "money", "time ratio", "flags")


def why_parts(answer: PlanWhy) -> list[RenderableType]:
    """The lines on one plan."""
    rank = "not in the table" if answer.rank is None else f"plan {answer.rank}"
    parts: list[RenderableType] = [heading(f"why {answer.name}: {answer.what} ({rank})")]
    parts += [indented(f"behind the first: {reason}") for reason in answer.fell]
    if answer.shares:
        parts += [indented(f"a step: {answer.bound}"), shares(answer.shares, indent=4)]
    parts.append(indented(f"next cheaper: {_neighbour(answer.next_cheaper)}"))
    parts.append(indented(f"next faster: {_neighbour(answer.next_faster)}"))
    if answer.changes:
        parts.append(indented(_most(answer.most)))
        planned = [change for change in answer.changes if change.hours_ratio is not None]
        parts.append(columns(_COLUMNS, [_row(change) for change in planned], right=_COLUMNS[1:4], wide="change of the job"))
        parts += [indented(f"{change.name}: {change.problem}") for change in answer.changes if change.problem]
    return parts


def _neighbour(neighbour: Neighbour | None) -> str:
    if neighbour is None:
        return "none"
    hours, usd = abs(neighbour.more_hours), abs(neighbour.more_usd)
    time = f"{format_duration(hours * 3600)} {'longer' if neighbour.more_hours > 0 else 'shorter'}"
    money = f"{format_usd(usd)} {'dearer' if neighbour.more_usd > 0 else 'cheaper'}"
    return f"{neighbour.what}; {time}, {money}{'' if neighbour.inside else ', outside the limits'}"


def _most(change: JobChange | None) -> str:
    if change is None or change.hours_ratio is None:
        return "no single change of the job makes it faster"
    changes = " (changes what is trained)" if change.changes_training else ""
    return f"what moves it most: {change.name}, {percent(1 - change.hours_ratio)} less time{changes}: {change.flags}"


def _row(change: JobChange) -> list[str]:
    hours = UNKNOWN if change.hours is None else format_duration(change.hours * 3600)
    usd = UNKNOWN if change.usd is None else format_usd(change.usd)
    ratio = UNKNOWN if change.hours_ratio is None else f"{change.hours_ratio:.2f}"
    return [change.name, hours, usd, ratio, change.flags]
