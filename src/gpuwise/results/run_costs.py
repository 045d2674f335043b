"""RunCosts: the time and money of a run over all of its attempts, beside its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed


@dataclass(frozen=True)
class AttemptTime:
    """The time of one start of a run, from its log. Seconds add up to `wall_s`.

    Attributes:
        number: from 1.
        host: its machine; "" in logs of older versions.
        device: chip of its forecast, else PyTorch's name of the device.
        began: start of its set-up, in UTC (ISO 8601).
        ended: its last record, in UTC. One that was killed may have gone on for some seconds.
        end: "finished" | "early stop" | "time limit" | "interrupted" | "error" | "" (killed, or still running).
        first_step, last_step: steps taken, from the first to the last; 0 for none.
        wall_s: from `began` to `ended`.
        setup_s: until its first step.
        steps_s: its steps that the run rests on, without the wait for data.
        data_s: their wait for data.
        again_s: its steps that a later attempt has taken again, with their wait for data.
        saving_s: in which saves stopped it.
        other_s: evaluations, and what else stands between steps.
    """

    number: int
    host: str
    device: str
    began: str
    ended: str
    end: str
    first_step: int
    last_step: int
    wall_s: float
    setup_s: float
    steps_s: float
    data_s: float
    again_s: float
    saving_s: float
    other_s: float


@dataclass(frozen=True)
class TimePart:
    """One use of a run's time, over all attempts.

    Attributes:
        name: "steps" | "waiting for data" | "saving" | "set-up" | "restarts" | "steps taken again" | "other" | "idle"
            (between attempts).
        spent_s: so far.
        expected_s: at the end: for steps that are left, at the measured pace.
        planned_s: of the whole run in the plan; None where the plan has it within another part, or there is none.
    """

    name: str
    spent_s: float
    expected_s: float
    planned_s: float | None = None


@dataclass(frozen=True)
class MoneySpent:
    """Dollars at the plan's price and its provider's terms.

    Attributes:
        usd_per_hour: the plan's price of all machines together.
        billed_s: machine time that is billed so far, with the provider's minimum and rounding.
        rentals: times that machines were rented. Attempts on one host, one after the other, share a rental and its idle time.
        spent_usd: so far, without what leaves the provider's network at the end.
        storage_usd: checkpoints, in spent_usd.
        released_usd: spent_usd where machines were given back between attempts on one host.
        expected_usd: at the end.
        planned_usd: of the whole run in the plan, with its 90 % interval.
    """

    usd_per_hour: float
    billed_s: float
    rentals: int
    spent_usd: float
    storage_usd: float
    released_usd: float
    expected_usd: float
    planned_usd: Interval


@dataclass(frozen=True, repr=False)
class RunCosts(Printed):
    """What a run has taken, and what its plan expected.

    Attributes:
        step, steps: optimizer steps that the run rests on, and of the whole run; None where the log does not say.
        attempts: each start.
        parts: uses of time; they add up to hours_spent.
        hours_spent: calendar time from the start of the first attempt to the end of the last.
        hours_expected: at the end.
        hours_planned: calendar time in the plan, with its 90 % interval; None without a plan.
        step_time_s: mean measured time of a step, with its wait for data; None before the first.
        step_time_planned_s: forecast of the plan; None without a plan.
        money: None without a plan.
        explanations: what makes the difference to the plan, largest first.
    """

    step: int
    steps: int | None
    attempts: tuple[AttemptTime, ...]
    parts: tuple[TimePart, ...]
    hours_spent: float
    hours_expected: float
    hours_planned: Interval | None
    step_time_s: float | None
    step_time_planned_s: float | None
    money: MoneySpent | None
    explanation_notes: tuple[Note, ...] = ()

    @property
    def explanations(self) -> tuple[str, ...]:
        """The explanations as sentences."""
        return sentences(self.explanation_notes)

    def to_dict(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "parts": [asdict(part) for part in self.parts],
            "hours_planned": self.hours_planned and asdict(self.hours_planned),
            "money": self.money and asdict(self.money),
            "explanations": list(self.explanations),
            "explanation_notes": to_dicts(self.explanation_notes),
        }
