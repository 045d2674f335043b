"""The calendar of a free tier: the sessions that a bill's machine time is spread over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpuwise.plan.economics.terms import WEEK_S

_LEAST_S = 1e-3  # a shorter rest is an error of rounding


@dataclass(frozen=True)
class FreeSession:
    """One session.

    Attributes:
        number: from 1.
        week: from 1.
        start_s: from the start of the first session, where sessions follow each other.
        length_s: machine time.
    """

    number: int
    week: int
    start_s: float
    length_s: float


def free_sessions(machine_s: float, *, session_s: float, week_s: float = math.inf) -> Iterator[FreeSession]:
    """The sessions of a run, as plan.economics.bills counts them: one after the other up to the hours of each week.

    The lengths add up to machine_s, and the last session ends at the bill's calendar_s.

    Arguments:
        machine_s: machine time of the run, of which each session's setup and save are a part.
        session_s: the longest session.
        week_s: machine time a week.
    """
    week_s = min(week_s, WEEK_S)
    left_s, left_of_week_s, number, week, start_s = machine_s, week_s, 1, 1, 0.0
    while left_s > _LEAST_S:
        if left_of_week_s <= _LEAST_S:
            week, start_s, left_of_week_s = week + 1, week * WEEK_S, week_s
        length_s = min(left_s, session_s, left_of_week_s)
        yield FreeSession(number, week, start_s, length_s)
        number, start_s = number + 1, start_s + length_s
        left_s, left_of_week_s = left_s - length_s, left_of_week_s - length_s
