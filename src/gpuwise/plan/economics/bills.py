"""Expected time and money of many runs at once, an array a figure. `bill` of one run is a row of these.

Every constant that is a guess is named in the assumptions of the result, with the flag that changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpuwise.plan.economics.interruptions import Array, InterruptionColumns, best_interval_s, expected_s
from gpuwise.plan.economics.terms import HOUR_S, WEEK_S, YEAR_S, Terms

_LEAST_PER_DAY = 1e-6  # fewer interruptions, one in a thousand years, are none
RESERVED_S = {"reserved-1y": YEAR_S, "reserved-3y": 3 * YEAR_S}


@dataclass(frozen=True, eq=False)
class TermsColumns:
    """The terms of many machines, a column a field of Terms.

    Attributes:
        free: whether sessions and weeks limit the machine.
        term_s: the term of a reservation, which is paid in full; 0 for others.
        how: interruptions.
        other fields: as in Terms; session_s and week_s are infinite where unlimited.
    """

    usd_per_hour: Array
    setup_s: Array
    minimum_s: Array
    billing_step_s: Array
    session_s: Array
    week_s: Array
    storage_usd_per_hour: Array
    transfer_usd: Array
    term_s: Array
    free: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    how: InterruptionColumns

    @classmethod
    def of(cls, terms: Sequence[Terms]) -> TermsColumns:
        """The columns of these terms."""

        def column(name: str) -> Array:
            values = [getattr(each, name) for each in terms]
            return np.array([np.inf if value is None else value for value in values], dtype=float)

        free = np.array([each.kind == "free" for each in terms])
        per_day = np.where(column("interruptions_per_day") < _LEAST_PER_DAY, 0.0, column("interruptions_per_day"))
        how = InterruptionColumns(
            np.where(free, 0.0, per_day), np.where(free, 0.0, column("day_machines")), column("save_s"), column("restart_s")
        )
        term_s = np.array([RESERVED_S.get(each.kind, 0.0) for each in terms])
        return cls(
            usd_per_hour=column("usd_per_hour"),
            setup_s=column("setup_s"),
            minimum_s=column("minimum_s"),
            billing_step_s=column("billing_step_s"),
            session_s=column("session_s"),
            week_s=column("week_s"),
            storage_usd_per_hour=column("storage_usd_per_hour"),
            transfer_usd=column("transfer_usd"),
            term_s=term_s,
            free=free,
            how=how,
        )

    def repeated(self, times: int) -> TermsColumns:
        """All rows, this many times one after the other."""
        columns = {each.name: np.tile(getattr(self, each.name), times) for each in fields(self) if each.name != "how"}
        return TermsColumns(**columns, how=self.how.repeated(times))


@dataclass(frozen=True, eq=False)
class Bills:
    """Expected time and money, a row a run; infinite where a run never ends.

    Attributes:
        machine_s: machine time that is billed, or that draws power.
        calendar_s: calendar time, which a deadline limits.
        usd: total cost.
        data_usd: storage and transfer in it.
        interval_s: work between two checkpoints; nan where none is needed.
        interruptions: expected number of interruptions.
    """

    machine_s: Array
    calendar_s: Array
    usd: Array
    data_usd: Array
    interval_s: Array
    interruptions: Array

    def split(self, parts: int) -> list[Bills]:
        """The bills of each of so many parts of equal length."""
        columns = [np.split(getattr(self, each.name), parts) for each in fields(self)]
        return [Bills(*part) for part in zip(*columns, strict=True)]


def bills(work_s: Array, terms: TermsColumns, *, interval_s: Array | None = None) -> Bills:
    """The expected bills of work_s seconds of training steps under these terms, row by row.

    Arguments:
        interval_s: work between two checkpoints; None (default) takes the best.
    """
    best = best_interval_s(terms.how) if interval_s is None else interval_s
    total_s, interruptions = expected_s(work_s, best, terms.how)
    machine_s = total_s + terms.setup_s
    calendar_s, interval = machine_s.copy(), np.where(np.isfinite(best), best, np.nan)
    if terms.free.any():
        machine_s, calendar_s, interval = _free(work_s, terms, machine_s, interval)
    ended_s = np.where(np.isfinite(calendar_s), calendar_s, 0.0)
    data_usd = ended_s / HOUR_S * terms.storage_usd_per_hour + terms.transfer_usd
    return Bills(machine_s, calendar_s, _usd(machine_s, terms) + data_usd, data_usd, interval, interruptions)


def _usd(machine_s: Array, terms: TermsColumns) -> Array:
    """Machine time at the price, with the minimum, the rounding and the term that are paid."""
    billed_s = np.maximum(machine_s, np.where(terms.free, 0.0, terms.minimum_s))
    rounded = np.ceil(billed_s / terms.billing_step_s) * terms.billing_step_s
    billed_s = np.where((terms.billing_step_s > 1) & ~terms.free, rounded, billed_s)
    reserved = terms.term_s > 0
    term_s = np.where(reserved, terms.term_s, 1.0)
    billed_s = np.where(reserved, np.ceil(machine_s / term_s) * term_s, billed_s)
    with np.errstate(invalid="ignore"):  # of no price for no end
        return np.where(np.isfinite(billed_s), billed_s / HOUR_S * terms.usd_per_hour, np.inf)


def _free(work_s: Array, terms: TermsColumns, machine_s: Array, interval: Array) -> tuple[Array, Array, Array]:
    """Machine time, calendar time and interval, with free tiers as a calendar.

    Sessions follow each other up to the hours of each week. Each session sets up and ends with a checkpoint.
    """
    lost_s = terms.setup_s + terms.how.save_s
    with np.errstate(invalid="ignore", divide="ignore"):
        useful_s = terms.session_s - lost_s
        sessions = np.where(np.isfinite(terms.session_s), np.ceil(work_s / useful_s), 1.0)
        used_s = np.where(useful_s > 0, work_s + sessions * lost_s, np.inf)
        weeks = np.where(np.isfinite(terms.week_s), np.ceil(used_s / terms.week_s) - 1, 0.0)
        calendar_s = np.where(weeks > 0, weeks * WEEK_S + (used_s - weeks * np.where(weeks > 0, terms.week_s, 0.0)), used_s)
    hourly = np.where(sessions > 1, np.minimum(useful_s, HOUR_S), np.nan)
    calendar_s = np.where(np.isfinite(used_s), calendar_s, np.inf)
    return (
        np.where(terms.free, used_s, machine_s),
        np.where(terms.free, calendar_s, machine_s),
        np.where(terms.free, hourly, interval),
    )
