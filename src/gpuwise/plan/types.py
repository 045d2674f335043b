"""The results of `plan`: plans, the user's own machines, and rejected offers. All are frozen; names carry the units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.errors import JobError
from gpuwise.hardware.prices import is_outlier
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.plan.break_even import BreakEven
from gpuwise.plan.cpu.enough import CpuEnough
from gpuwise.plan.pareto import ParetoFront
from gpuwise.plan.rejection import Rejection
from gpuwise.plan.time_and_money import TimeAndMoney, describe
from gpuwise.plan.verified import Verified
from gpuwise.plan.why.types import PlanWhy
from gpuwise.printed import Printed
from gpuwise.step_settings import job_word
from gpuwise.strategy import HostSettings, Strategy


@dataclass(frozen=True, repr=False)
class Plan(Printed):
    """One way to train the job: the machine, the strategy, and the expected time and cost.

    Attributes:
        rank: position in the table, from 1.
        job: name of the job.
        job_fingerprint: identifies the job (gpuwise.job.fingerprint).
        job_argument: the JOB argument as the user typed it; "" for a Job object.
        strategy: how a step runs.
        offer: the rented or used machine.
        device: its chip.
        count: number of devices; a fraction for a slice of one device.
        forecast: forecast of one optimizer step.
        hours: calendar time of the run.
        machine_hours: machine time that is billed, or that draws power.
        usd: expected cost in dollars, with its 90 % interval.
        finish_probability: probability that the run ends before the deadline; 1 without a deadline.
        steps: number of optimizer steps.
        samples: total number of samples.
        price_as_of: date of the price.
        gpuwise_version: version that made the plan.
        sizes: sizes of a sample, such as seq_len.
        checkpoint_interval_s: seconds of work between checkpoints; None where no interruption is expected.
        reason_notes: reasons for the plan's rank.
        assumption_notes: guesses, with the flags that change them.
        hours_interval: 90 % interval of `hours`.
        train_obstacle: why `gpuwise train` cannot run the plan; "" where it can.
        price_of_median: price divided by the chip's median on-demand price; None for owned machines and unknown medians.
        usd_per_hour: likely price of an hour of the machine, with its 90 % interval; None in files of older versions.
        usd_at_listed_price: cost if the listed price holds; None in files of older versions.
        host: settings of the machine that runs the plan; the runtime chooses those that are None.
        machines: number of machines that run the job together.
        chance: probability to keep the deadline and the budget; 1 without limits.
    """

    rank: int
    job: str
    job_fingerprint: str
    job_argument: str
    strategy: Strategy
    offer: Offer
    device: str
    count: float
    forecast: Forecast
    hours: float
    machine_hours: float
    usd: Interval
    finish_probability: float
    steps: int
    samples: int
    price_as_of: str
    gpuwise_version: str
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    checkpoint_interval_s: float | None = None
    reason_notes: tuple[Note, ...] = ()
    assumption_notes: tuple[Note, ...] = ()
    hours_interval: Interval | None = None
    train_obstacle: str = ""
    price_of_median: float | None = None
    usd_per_hour: Interval | None = None
    usd_at_listed_price: float | None = None
    host: HostSettings = field(default_factory=HostSettings)
    machines: int = 1
    chance: float = 1.0

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons as sentences."""
        return sentences(self.reason_notes)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    @property
    def price_outlier(self) -> bool:
        """Whether the price is suspiciously far below the chip's median."""
        return is_outlier(self.price_of_median)

    @property
    def price_may_rise(self) -> bool:
        """Whether the run is counted at a price above the listed one, which may not hold."""
        return any(note.kind == "likely-price" for note in self.reason_notes)

    def check_job(self, fingerprint: str) -> None:
        """Raises JobError if the plan was made for another job.

        The fingerprint covers the job's name and the names, shapes and types of its parameters, nothing else.
        """
        if self.job_fingerprint != fingerprint:
            raise JobError(
                f"this plan is for another job: it was made for {self.job} with fingerprint "
                f"{self.job_fingerprint[:12]}, this job has {fingerprint[:12]}.",
                [
                    f"plan again: gpuwise plan {job_word(self.job_argument)}",
                    f"run the job it was made for: {self.job_argument or self.job}",
                ],
            )

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, one entry of `plans`."""
        return {
            "rank": self.rank,
            "job": self.job,
            "job_fingerprint": self.job_fingerprint,
            "job_argument": self.job_argument,
            "offer": self.offer.to_dict(),
            "device": self.device,
            "count": self.count,
            "machines": self.machines,
            "strategy": {**self.strategy.to_dict(), **self.host.to_dict()},
            "forecast": self.forecast.to_dict(),
            "hours": self.hours,
            "hours_interval": _ends(self.hours_interval),
            "machine_hours": self.machine_hours,
            "usd": self.usd.value,
            "usd_interval": _ends(self.usd),
            "train_obstacle": self.train_obstacle or None,
            "finish_probability": self.finish_probability,
            "chance": self.chance,
            "reasons": list(self.reasons),
            "reason_notes": to_dicts(self.reason_notes),
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "steps": self.steps,
            "samples": self.samples,
            "sizes": dict(self.sizes),
            "checkpoint_interval_s": self.checkpoint_interval_s,
            "price_as_of": self.price_as_of,
            "price_of_median": self.price_of_median,
            "price_outlier": self.price_outlier,
            "usd_per_hour_likely": None if self.usd_per_hour is None else self.usd_per_hour.value,
            "usd_per_hour_interval": _ends(self.usd_per_hour),
            "usd_at_listed_price": self.usd_at_listed_price,
            "gpuwise_version": self.gpuwise_version,
        }


@dataclass(frozen=True)
class OwnedMachine:
    """A machine of the user: one named with --own, or this one.

    Attributes:
        offer: the machine as an offer.
        device: its chip.
        count: number of devices.
        rank: rank of its plan in the table; None without a plan there.
        reason_note: why it has no plan in the table; None with one.
        hours: calendar time of the run on it; None where it cannot train the job.
        usd: cost of the run on it; None where it cannot train the job.
        purchase_usd: approximate purchase price; None for this machine, or where no price is known.
        break_even_months: months of uninterrupted work after which buying has cost less than renting, resale not counted;
            None where that never happens or is unknown.
        rental: the rental it is compared with, in words; "" where nothing is compared.
        resale_usd: what the machine brings at the end of its lifetime; None where no purchase price is known.
        lifetime_years: until then.
        break_even: against every rental of the table, when buying wins.
        break_even_offers: the same against every rental inside budget and deadline, in the order of the ranking.
    """

    offer: Offer
    device: str
    count: float
    rank: int | None = None
    reason_note: Note | None = None
    hours: float | None = None
    usd: float | None = None
    purchase_usd: float | None = None
    break_even_months: float | None = None
    rental: str = ""
    resale_usd: float | None = None
    lifetime_years: float | None = None
    break_even: tuple[BreakEven, ...] = ()
    break_even_offers: tuple[BreakEven, ...] = ()

    @property
    def reason(self) -> str:
        """The reason as a sentence; empty for a machine in the table."""
        return "" if self.reason_note is None else self.reason_note.text

    def bought(self, purchase_usd: float, break_even_months: float | None, rental: TimeAndMoney) -> OwnedMachine:
        """A copy with the purchase price and the break-even time."""
        return replace(self, purchase_usd=purchase_usd, break_even_months=break_even_months, rental=describe(rental))

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, one entry of `at_hand`."""
        return {
            "device": self.device,
            "count": self.count,
            "provider": self.offer.provider,
            "instance": self.offer.instance,
            "rank": self.rank,
            "reason": self.reason or None,
            "reason_note": None if self.reason_note is None else self.reason_note.to_dict(),
            "hours": self.hours,
            "usd": self.usd,
            "purchase_usd": self.purchase_usd,
            "break_even_months": self.break_even_months,
            "rental": self.rental or None,
            "resale_usd": self.resale_usd,
            "lifetime_years": self.lifetime_years,
            "break_even": [row.to_dict() for row in self.break_even],
            "break_even_offers": [row.to_dict() for row in self.break_even_offers],
        }


@dataclass(frozen=True, repr=False)
class PlanResult(Printed):
    """Plans, best first.

    Attributes:
        plans: the plans of the table.
        rejected: rejected offers, counted by reason.
        assumption_notes: guesses shared by all plans, with the flags that change them.
        considered: number of offers examined.
        priced: number of forecasts made.
        at_hand: the user's own machines, ranked or not.
        best_at_usual_price: the best plan at a usual price, if the price of the first plan is an outlier; None if no such
            plan is inside budget and deadline.
        why: why the first plan and those that the user names stand where they stand; empty if nobody asks.
        front: the Pareto front of time, money and energy; None in a result made by hand.
        cpu_enough: whether this machine's CPU is enough; None where it is not considered, or cannot train the job.
        verified: what exact forecasts changed of composed strategies; None where none were composed.
        composed: number of strategies composed of the model's blocks, of which the fastest were forecast; 0 by default.
    """

    plans: tuple[Plan, ...]
    rejected: Mapping[str, Rejection]
    assumption_notes: tuple[Note, ...]
    considered: int
    priced: int
    at_hand: tuple[OwnedMachine, ...] = ()
    best_at_usual_price: Plan | None = None
    front: ParetoFront | None = None
    why: tuple[PlanWhy, ...] = ()
    cpu_enough: CpuEnough | None = None
    verified: Verified | None = None
    composed: int = 0

    @property
    def best(self) -> Plan:
        return self.plans[0]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of all plans as sentences."""
        return sentences(self.assumption_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`. rejected: counts by reason; rejected_examples: the nearest."""
        return {
            "plans": [plan.to_dict() for plan in self.plans],
            "rejected": {reason: rejection.count for reason, rejection in self.rejected.items()},
            "rejected_examples": {reason: list(rejection.examples) for reason, rejection in self.rejected.items()},
            "rejection_notes": [rejection.to_dict() for rejection in self.rejected.values()],
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
            "considered": self.considered,
            "priced": self.priced,
            "composed": self.composed,
            "pareto": [] if self.front is None else [point.to_dict() for point in self.front.points],
            "why": [each.to_dict() for each in self.why],
            "cpu_enough": None if self.cpu_enough is None else self.cpu_enough.to_dict(),
            "at_hand": [machine.to_dict() for machine in self.at_hand],
            "verified": None if self.verified is None else self.verified.to_dict(),
            "best_at_usual_price": None if self.best_at_usual_price is None else self.best_at_usual_price.to_dict(),
        }


def _ends(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}
