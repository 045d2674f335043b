"""The plan of a run as RUN/run.json keeps it: what the money and time of the run are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuwise.cost.forecast import Interval
from gpuwise.plain_files import parse_json, read_regular
from gpuwise.report.plain import Record, number, part, text

MOST_BYTES = 8_000_000  # largest accepted run.json


@dataclass(frozen=True)
class PlanRecord:
    """The figures of a plan that a run is compared with. Seconds and dollars are of the whole run.

    Attributes:
        device: id of its chip.
        provider, terms: of its offer.
        steps: optimizer steps.
        step_time_s: forecast of a step.
        calendar_s: with its 90 % interval.
        machine_s: machine time.
        usd: with its 90 % interval.
        usd_per_hour: expected price of all machines together.
    """

    device: str
    provider: str
    terms: str
    steps: int
    step_time_s: float
    calendar_s: Interval
    machine_s: float
    usd: Interval
    usd_per_hour: float

    @property
    def steps_s(self) -> float:
        """Of all steps."""
        return self.steps * self.step_time_s


def plan_of_run(folder: Path) -> PlanRecord | None:
    """The plan of the run in a folder; None where it has none, or one that cannot be read."""
    try:
        run = parse_json(read_regular(folder / "run.json", limit_bytes=MOST_BYTES))
    except (OSError, ValueError):
        return None
    return plan_record(part(run, "plan")) if isinstance(run, dict) else None


def plan_record(plan: Record) -> PlanRecord | None:
    """The figures of a plan's dictionary, as Plan.to_dict makes it; None where one is missing."""
    offer, step = part(plan, "offer"), number(part(part(plan, "forecast"), "step_time_s"), "value")
    hours, machine_hours, usd, steps = (number(plan, name) for name in ("hours", "machine_hours", "usd", "steps"))
    price = number(plan, "usd_per_hour_likely")
    price = number(offer, "usd_per_hour") if price is None else price
    if step is None or hours is None or machine_hours is None or usd is None or steps is None or price is None:
        return None
    # An owned machine's price is of all of them. Dollars an hour below the price show a discount of the user's.
    machines = 1.0 if text(offer, "terms") == "owned" else max(1.0, number(plan, "machines") or 1.0)
    usd_per_hour = min(price * machines, usd / machine_hours) if machine_hours > 0 else price * machines
    return PlanRecord(
        device=text(plan, "device"),
        provider=text(offer, "provider"),
        terms=text(offer, "terms"),
        steps=int(steps),
        step_time_s=step,
        calendar_s=_interval(part(plan, "hours_interval"), hours).scaled(3600),
        machine_s=machine_hours * 3600,
        usd=_interval(part(plan, "usd_interval"), usd),
        usd_per_hour=usd_per_hour,
    )


def _interval(ends: Record, value: float) -> Interval:
    low, high = number(ends, "low"), number(ends, "high")
    return Interval(value, value if low is None else low, value if high is None else high)
