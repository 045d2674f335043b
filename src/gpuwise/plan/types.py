"""Plan: one way to train a job, with time and money. Frozen; names carry the units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.errors import JobError
from gpuwise.hardware.prices import is_outlier
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note, sentences, to_dicts
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
    def on_cpu(self) -> bool:
        """Whether the host's CPU is the device: such offers have no devices beside it."""
        return self.offer.count == 0

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
                    f"plan again: gpuwise plan {job_word(self.job_argument)} -o plan.toml",
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


def _ends(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}
