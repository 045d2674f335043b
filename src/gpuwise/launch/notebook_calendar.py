"""The sessions of a plan as a table of markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from itertools import islice

from gpuwise.errors import InputError
from gpuwise.launch.notebook_sites import SiteTime
from gpuwise.plan.economics.free_sessions import FreeSession, free_sessions
from gpuwise.plan.economics.terms import HOUR_S
from gpuwise.plan.types import Plan

_MOST_ROWS = 100


def parse_start(text: str) -> date | None:
    """The day of the first session; None for "". Raises InputError for no day of the calendar."""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InputError(f"--set start={text} is no day.", ["--set start=2026-12-01"]) from None


def calendar(plan: Plan, site: SiteTime, *, session_s: float, start: date | None) -> Iterator[str]:
    """Lines of a table: the sessions that the plan's machine hours are spread over, which follow each other within each week.

    Arguments:
        session_s: the longest session.
        start: the day of the first one, from whose midnight it counts; None numbers the days.
    """
    sessions = free_sessions(site.machine_s, session_s=session_s, week_s=site.week_s)
    yield "| session | week | not before | hours | step at its end, about |"
    yield "| ---: | ---: | --- | ---: | ---: |"
    ended_s = 0.0
    for session in islice(sessions, _MOST_ROWS):
        ended_s += session.length_s
        step = round(plan.steps * min(1.0, ended_s / site.machine_s))
        yield (
            f"| {session.number} | {session.week} | {_moment(session, start)} | {session.length_s / HOUR_S:.1f} | {step:,} |"
        )
    if (left_s := site.machine_s - ended_s) > 1:
        yield f"| later | | | {left_s / HOUR_S:,.1f} | {plan.steps:,} |"
    yield ""
    yield f"{site.machine_s / HOUR_S:,.1f} hours in all, each session's start and last save among them."


def _moment(session: FreeSession, start: date | None) -> str:
    """'2026-12-01 12:00', or 'day 1, 12:00'."""
    begin = datetime.combine(start or date(2001, 1, 1), time())
    try:
        at = begin + timedelta(seconds=round(session.start_s))
    except OverflowError:
        return ""
    return f"{at:%Y-%m-%d %H:%M}" if start else f"day {(at - begin).days + 1}, {at:%H:%M}"


def escaped(text: str) -> str:
    """Text of any characters as one line of markdown, in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&-])", r"\\\1", _one_line(text))


def code(text: str) -> str:
    """Text of any characters as code in a line of markdown, without what could end it, or be HTML."""
    return f"`{re.sub('[`<>]', ' ', _one_line(text))}`"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
