"""Joins the records of a run's log over interruptions and resumes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.report.plain import Record, number


def lasting(records: Sequence[Record], kind: str) -> list[Record]:
    """The records of one kind ("step", "evaluation", ...) that the run rests on, oldest first.

    Those of the latest run, and of what it was resumed from: up to the step it continued after. What was trained beyond
    that step, and then again, counts once, as it was done last. A run that was not resumed starts anew.
    """
    kept: list[Record] = []
    before: list[Record] = []
    for record in records:
        if record.get("record") == "header":
            before, kept = kept, []
        elif record.get("record") == "resumed":
            kept = [cut for cut in (_up_to(number(record, "step"), earlier) for earlier in (kept or before)) if cut is not None]
        elif record.get("record") == kind and number(record, "step") is not None:
            kept.append(record)
    return kept


def _up_to(last: float | None, record: Record) -> Record | None:
    """The record, or what of the steps it averages lies before `last`; None where that is nothing.

    A step repeated from the same state has the same loss, so a mean over steps on both sides stands for those kept.
    """
    step, steps = number(record, "step"), number(record, "steps") or 1
    if last is None or step is None or step <= last:
        return record
    return {**record, "step": int(last), "steps": int(last - step + steps)} if step - steps < last else None


def latest(records: Sequence[Record], kind: str) -> Record:
    """The last record of a kind; empty without one."""
    return next((record for record in reversed(records) if record.get("record") == kind), {})
