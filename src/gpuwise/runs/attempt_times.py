"""The attempts of a run, each with the uses of its time, from the records of its log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from gpuwise.report.plain import Record, number, part, text
from gpuwise.results.run_costs import AttemptTime

_ENDS = ("summary", "error", "interrupted")
_SENSELESS = 1e12  # seconds, steps and bytes from here on are none: 30,000 years


def attempt_times(records: Sequence[Record]) -> list[AttemptTime]:
    """The attempts in the order of the log; empty without a header. A record that makes no sense is left out."""
    logs = [log for log in _by_attempt(records) if _times(log)]
    resumed = [_resumed_from(log) for log in logs]
    # A step is one that the run rests on where no later attempt went on from before it.
    return [_attempt(log, number=index + 1, kept_to=min(resumed[index + 1 :], default=None)) for index, log in enumerate(logs)]


def unix_s(record: Record, name: str = "time") -> float | None:
    """A time of a record as UNIX seconds; None where it has none, or no time zone."""
    try:
        time = datetime.fromisoformat(text(record, name))
    except ValueError:
        return None
    return None if time.tzinfo is None else time.timestamp()


def figure(record: Record, name: str) -> float:
    """A number of a record, 0 where it has none by that name, or a senseless one."""
    value = number(record, name) or 0.0
    return value if 0 <= value < _SENSELESS else 0.0


def _by_attempt(records: Sequence[Record]) -> list[list[Record]]:
    logs: list[list[Record]] = []
    for record in records:
        if record.get("record") == "header":
            logs.append([])
        if logs:
            logs[-1].append(record)
    return logs


def _times(log: Sequence[Record]) -> list[float]:
    return [time_s for record in log if (time_s := unix_s(record)) is not None]


def _resumed_from(log: Sequence[Record]) -> float:
    return figure(log[0], "resumed_from")


def _attempt(log: Sequence[Record], *, number: int, kept_to: float | None) -> AttemptTime:
    header, times = log[0], _times(log)
    began_s = unix_s(header, "began")
    began_s, ended_s = times[0] if began_s is None else min(began_s, times[0]), max(times)
    steps = [record for record in log if record.get("record") == "step" and figure(record, "step")]
    worked_s = waited_s = again_s = 0.0
    for record in steps:
        share = _share_kept(record, kept_to)
        work_s, wait_s = _step_times(record)
        worked_s, waited_s = worked_s + share * work_s, waited_s + share * wait_s
        again_s += (1 - share) * (work_s + wait_s)
    saving_s = sum(figure(record, "held_up_s") for record in log if record.get("record") == "checkpoint")
    first_s = None if not steps else unix_s(steps[0])
    setup_s = ended_s - began_s - saving_s if first_s is None else first_s - sum(_step_times(steps[0])) - began_s
    setup_s = min(max(0.0, setup_s), ended_s - began_s)
    wall_s = ended_s - began_s
    return AttemptTime(
        number=number,
        host=text(header, "host"),
        device=text(part(header, "forecast"), "device") or text(header, "device"),
        began=_iso(began_s),
        ended=_iso(ended_s),
        end=_end(log),
        first_step=0 if not steps else int(figure(steps[0], "step") - _count(steps[0]) + 1),
        last_step=max((int(figure(record, "step")) for record in steps), default=0),
        wall_s=wall_s,
        setup_s=setup_s,
        steps_s=worked_s,
        data_s=waited_s,
        again_s=again_s,
        saving_s=saving_s,
        other_s=max(0.0, wall_s - setup_s - worked_s - waited_s - again_s - saving_s),
    )


def _end(log: Sequence[Record]) -> str:
    last = next((record for record in reversed(log) if record.get("record") in _ENDS), None)
    if last is None:
        return ""
    return text(last, "stopped") if last["record"] == "summary" else str(last["record"])


def _count(record: Record) -> float:
    """Steps that share a record."""
    return max(1.0, figure(record, "steps"))


def _step_times(record: Record) -> tuple[float, float]:
    """Seconds of the steps of a record, and of their waits for data."""
    return _count(record) * figure(record, "step_time_s"), _count(record) * figure(record, "data_s")


def _share_kept(record: Record, kept_to: float | None) -> float:
    """The share of a record's steps that no later attempt has taken again."""
    if kept_to is None:
        return 1.0
    last, count = figure(record, "step"), _count(record)
    return min(1.0, max(0.0, (kept_to - (last - count)) / count))


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
