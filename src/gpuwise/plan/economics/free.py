"""Free tiers: sessions of limited length, and a quota a week."""

from __future__ import annotations

import math

from gpuwise.plan.economics.terms import HOUR_S, WEEK_S, Bill, Terms


def free_bill(work_s: float, terms: Terms) -> Bill:
    """The bill of work_s seconds of work in consecutive sessions, up to the hours of each week.

    Each session sets up and ends with a checkpoint.
    """
    lost_s = terms.setup_s + terms.save_s
    session_s = terms.session_s or math.inf
    if session_s <= lost_s:
        return Bill(math.inf, math.inf, math.inf)
    sessions = math.ceil(work_s / (session_s - lost_s)) if math.isfinite(session_s) else 1
    machine_s = work_s + sessions * lost_s
    calendar_s = machine_s
    if terms.week_s:
        full_weeks = math.ceil(machine_s / terms.week_s) - 1
        calendar_s = full_weeks * WEEK_S + (machine_s - full_weeks * terms.week_s)
    interval_s = min(session_s - lost_s, HOUR_S) if sessions > 1 else None
    return Bill(machine_s, calendar_s, machine_s / HOUR_S * terms.usd_per_hour, interval_s)
