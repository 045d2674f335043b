"""run_costs: the time and money of a run over all of its attempts, beside its plan."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.notes import Note
from gpuwise.notes import run_costs as notes
from gpuwise.plan.economics.terms import HOUR_S
from gpuwise.report.plain import Record, number
from gpuwise.report.run_records import latest
from gpuwise.results.run_costs import AttemptTime, MoneySpent, RunCosts, TimePart
from gpuwise.runs.attempt_times import attempt_times, figure
from gpuwise.runs.log_records import read_log
from gpuwise.runs.plan_record import PlanRecord, plan_of_run
from gpuwise.runs.rentals import bill_of, rentals, storage_usd, unix_of

LOG = "log.jsonl"
TELLING_SHARE = 0.02  # of the planned time: smaller differences are not explained
# What a plan counts together, as everything beside the steps of a machine's time.
OVERHEADS = ("set-up", "restarts", "saving", "steps taken again", "other")


def run_costs(run: str | os.PathLike[str], *, log: str | os.PathLike[str] | None = None) -> RunCosts:
    """What the run in a folder has taken so far, from its log, beside its plan (`train --plan`) from its run.json.

    Arguments:
        log: the log, if it is not in the folder.

    Raises FileFormatError where the log has no attempt, InputError where it cannot be read or is no log.
    """
    path = Path(run) / LOG if log is None else Path(log)
    return costs_of(read_log(path), plan_of_run(Path(run)), name=str(path))


def costs_of(records: Sequence[Record], plan: PlanRecord | None, *, name: str = "the log") -> RunCosts:
    """The same from the records of a log. Raises FileFormatError where they have no attempt."""
    attempts = attempt_times(records)
    if not attempts:
        raise FileFormatError(f"{name} has no header of a run.", ["--log FILE, if the run wrote its log there"])
    header = latest(records, "header")
    steps = int(figure(header, "steps")) or None
    step = attempts[-1].last_step or int(figure(header, "resumed_from"))
    left = 0 if _is_over(attempts[-1]) else max(0, (steps or 0) - step)
    spent_s = _spent(attempts)
    expected_s = {part: spent_s[part] * (1 + (left / step if part in _PER_STEP and step else 0.0)) for part in spent_s}
    parts = tuple(
        TimePart(part, spent_s[part], expected_s[part], None if plan is None else _planned(part, plan)) for part in spent_s
    )
    calendar_s, more_s = sum(spent_s.values()), sum(expected_s.values()) - sum(spent_s.values())
    step_time_s = None if not step else (spent_s["steps"] + spent_s["waiting for data"]) / step
    money = None if plan is None else _money(attempts, plan, records, calendar_s=calendar_s, more_s=more_s)
    return RunCosts(
        step=step,
        steps=steps,
        attempts=tuple(attempts),
        parts=parts,
        hours_spent=calendar_s / HOUR_S,
        hours_expected=(calendar_s + more_s) / HOUR_S,
        hours_planned=None if plan is None else plan.calendar_s.scaled(1 / HOUR_S),
        step_time_s=step_time_s,
        step_time_planned_s=None if plan is None else plan.step_time_s,
        money=money,
        explanation_notes=() if plan is None or money is None else tuple(_explanations(attempts, expected_s, plan, money)),
    )


_PER_STEP = ("steps", "waiting for data", "saving")  # parts that grow with the steps that are left


def _is_over(attempt: AttemptTime) -> bool:
    return attempt.end in ("finished", "early stop")


def _spent(attempts: Sequence[AttemptTime]) -> dict[str, float]:
    """Seconds by use."""
    between = itertools.pairwise(attempts)
    return {
        "steps": sum(attempt.steps_s for attempt in attempts),
        "waiting for data": sum(attempt.data_s for attempt in attempts),
        "saving": sum(attempt.saving_s for attempt in attempts),
        "set-up": attempts[0].setup_s,
        "restarts": sum(attempt.setup_s for attempt in attempts[1:]),
        "steps taken again": sum(attempt.again_s for attempt in attempts),
        "other": sum(attempt.other_s for attempt in attempts),
        "idle": sum(max(0.0, unix_of(after.began) - unix_of(before.ended)) for before, after in between),
    }


def _planned(part: str, plan: PlanRecord) -> float | None:
    """Seconds of a part in the plan. Of its overheads, only their sum is planned: it stands at the first of them."""
    if part == "steps":
        return plan.steps_s
    if part == "idle":
        return max(0.0, plan.calendar_s.value - plan.machine_s)
    return max(0.0, plan.machine_s - plan.steps_s) if part == OVERHEADS[0] else None


def _money(
    attempts: Sequence[AttemptTime], plan: PlanRecord, records: Sequence[Record], *, calendar_s: float, more_s: float
) -> MoneySpent:
    spans_s = rentals(attempts, terms=plan.terms)
    bill = bill_of(spans_s, plan)
    # The rest of the run lengthens the last rental.
    in_all = bill_of([*spans_s[:-1], spans_s[-1] + more_s], plan)
    released = bill_of([attempt.wall_s for attempt in attempts], plan)
    nbytes = figure(latest([record for record in records if number(record, "bytes")], "checkpoint"), "bytes")
    stored_usd, stored_in_all_usd = (storage_usd(nbytes, seconds, plan) for seconds in (calendar_s, calendar_s + more_s))
    return MoneySpent(
        usd_per_hour=plan.usd_per_hour,
        billed_s=bill.billed_s,
        rentals=len(spans_s),
        spent_usd=bill.usd + stored_usd,
        storage_usd=stored_usd,
        released_usd=released.usd + stored_usd,
        expected_usd=in_all.usd + stored_in_all_usd,
        planned_usd=plan.usd,
    )


def _explanations(
    attempts: Sequence[AttemptTime], expected_s: Mapping[str, float], plan: PlanRecord, money: MoneySpent
) -> list[Note]:
    """What makes the difference to the plan, largest first; then what is not counted."""
    least_s = TELLING_SHARE * plan.calendar_s.value
    steps_s = expected_s["steps"] - plan.steps_s
    overheads_s = sum(expected_s[part] for part in OVERHEADS) - max(0.0, plan.machine_s - plan.steps_s)
    idle_s = expected_s["idle"] - max(0.0, plan.calendar_s.value - plan.machine_s)
    named = [
        (steps_s, notes.steps_beside_plan(seconds=steps_s, share=steps_s / plan.steps_s if plan.steps_s else 0.0)),
        (
            expected_s["waiting for data"],
            notes.part_beside_plan(part="waiting for data", seconds=expected_s["waiting for data"]),
        ),
        (overheads_s, notes.part_beside_plan(part=", ".join(OVERHEADS), seconds=overheads_s)),
        (idle_s, notes.part_beside_plan(part="idle between attempts", seconds=idle_s)),
    ]
    explanations = [note for seconds, note in sorted(named, key=lambda pair: -abs(pair[0])) if abs(seconds) > least_s]
    beyond_usd = money.spent_usd - money.storage_usd - sum(each.wall_s for each in attempts) / HOUR_S * plan.usd_per_hour
    if beyond_usd > TELLING_SHARE * plan.usd.value:
        explanations.append(notes.billing_beside_time(usd=beyond_usd, rentals=money.rentals))
    elsewhere: dict[str, list[str]] = {}
    for attempt in attempts:
        if attempt.device != plan.device:
            elsewhere.setdefault(attempt.device, []).append(str(attempt.number))
    explanations += [
        notes.ran_on_another_device(attempts=", ".join(numbers), device=device, planned=plan.device)
        for device, numbers in elsewhere.items()
    ]
    return [*explanations, notes.not_in_the_log()]
