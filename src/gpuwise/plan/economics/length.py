"""The length of a run in samples, from the user's settings and the job's data set."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuwise.cost.forecast import Forecast, Interval, WholeRun
from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.notes.run import assumed_one_epoch, assumed_setup, tokens_in_samples
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.terms import HOUR_S, SETUP_S, Terms
from gpuwise.step_settings import WorkSettings
from gpuwise.trace.header import Header
from gpuwise.units import parse_count

MOST_EPOCHS = 10**9


@dataclass(frozen=True)
class RunLength:
    """The length of a run: samples, epochs or tokens, or samples an epoch together with epochs.

    samples_per_epoch is the size of the job's own data set; None where unknown.
    """

    samples: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    samples_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and (self.samples is not None or self.epochs is not None):
            raise InputError(
                "more than one of samples, epochs and tokens is given.",
                ["give one of them", "samples and epochs together are samples an epoch, and epochs"],
            )
        if self.epochs is not None and self.epochs > MOST_EPOCHS:
            raise InputError(f"epochs {self.epochs:,} is no sensible number: at most {MOST_EPOCHS:,}.")
        for name in ("samples", "epochs", "tokens", "samples_per_epoch"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name.replace('_', ' ')} must be a number above zero, got {value!r}.")

    @classmethod
    def of(cls, settings: WorkSettings, samples_per_epoch: int | None) -> RunLength:
        """The length from settings whose counts may be text such as "50k"."""

        def count(value: int | str | None, name: str) -> int | None:
            return None if value is None else parse_count(str(value), f"a number of {name}")

        return cls(
            count(settings.get("samples"), "samples"),
            settings.get("epochs"),
            count(settings.get("tokens"), "tokens"),
            samples_per_epoch,
        )

    def relevant(self, notes: Iterable[Note]) -> tuple[Note, ...]:
        """Without the assumed samples of an epoch, where the user names samples or tokens."""
        assumed = self.samples is None and self.tokens is None
        return tuple(note for note in notes if assumed or note.kind != "assumed-samples-per-epoch")

    @property
    def named(self) -> bool:
        """Whether the user sets a length."""
        return any(value is not None for value in (self.samples, self.epochs, self.tokens))

    def total_samples(self, header: Header) -> tuple[int, list[Note]]:
        """The samples to train on, with the assumptions. Raises InputError if neither the user nor the job sets a length."""
        if self.samples is not None:
            return math.ceil((self.epochs or 1) * self.samples), []
        if self.tokens is not None:
            if header.sample_unit != "token":
                raise InputError(f"{header.job} counts {header.sample_unit}s, not tokens.", ["give --samples or --epochs"])
            each = header.units_per_sample
            return math.ceil(self.tokens / each), [tokens_in_samples(tokens=self.tokens, tokens_per_sample=each)]
        if self.samples_per_epoch is None:
            tokens = ", --tokens" if header.sample_unit == "token" else ""
            raise InputError(
                f"how much to train {header.job} is not known: it has no data set of a known size.",
                [
                    f"give --samples{tokens}, e.g. --samples 1M",
                    "samples=... in the Job: its data set is not opened for a forecast",
                ],
            )
        assumed = [] if self.epochs else [assumed_one_epoch()]
        return math.ceil((self.epochs or 1) * self.samples_per_epoch), assumed


def with_whole_run(forecast: Forecast, length: RunLength, header: Header) -> Forecast:
    """The forecast with the time and money of a run of this length, on demand and without an interruption.

    Setting up a rented machine is paid time. Raises InputError if the length is unknown.
    """
    samples, assumed = length.total_samples(header)
    steps = -(-samples // forecast.strategy.global_batch)
    work, usd_per_hour = forecast.step_time_s.scaled(steps), forecast.usd_per_hour
    terms = Terms("on-demand", usd_per_hour or 0.0, setup_s=0.0 if usd_per_hour is None else SETUP_S)
    bills = [bill(seconds, terms) for seconds in (work.value, work.low, work.high)]
    if usd_per_hour is not None:
        assumed.append(assumed_setup(setup_s=SETUP_S))
    hours = Interval(*(each.calendar_s / HOUR_S for each in bills))
    usd = None if usd_per_hour is None else Interval(*(each.usd for each in bills))
    run = WholeRun(samples, steps, hours, usd)
    return replace(forecast, run=run, assumption_notes=(*forecast.assumption_notes, *assumed))
