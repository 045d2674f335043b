"""RecordedLoad, RecordedLengths: loads whose arrivals and lengths, or lengths alone, come from a file of requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from gpuwise.errors import InputError
from gpuwise.serving.arrivals import bursty
from gpuwise.serving.days import HOURS, DayCurve, day_of
from gpuwise.serving.instance import COUNT, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.request_log import RequestLog
from gpuwise.serving.requests import Requests, requests

WINDOW = 10_000  # requests that are replayed at most: of a longer file those of its busiest part
FEWEST = 200  # of the busiest part of a file with fewer an hour
HOUR_S = 3600.0


@dataclass(frozen=True)
class RecordedLoad(LoadShape):
    """Requests of a file at any rate: their gaps shrink or grow together.

    Attributes:
        recorded: the requests that are replayed.
        recorded_per_s: their mean rate.
        every: 1 (default) replays all of them, 3 every third.
    """

    recorded: Requests | None = None
    recorded_per_s: float = 1.0
    every: int = 1

    @property
    def is_in_bursts(self) -> bool:
        """Whether each of several instances may have more even requests than all of them together."""
        return True

    def dealt(self, instances: int) -> LoadShape:
        """What the first of so many instances gets where requests reach them in turn."""
        return replace(self, every=instances)

    @property
    def recorded_count(self) -> int:
        """Requests that are replayed."""
        return 0 if self.recorded is None else len(self.recorded)

    def at(self, rate_per_s: float, *, count: int = WINDOW) -> Requests:
        """The requests at a rate, the first `count` of them. Few come again until they are COUNT: a load that ends while an
        engine fills up says nothing of what it serves."""
        assert self.recorded is not None
        own, slower = self.recorded, self.recorded_per_s / self.every / rate_per_s
        replayed = len(own) * ceil(COUNT * self.every / len(own)) // self.every
        again, row = np.divmod(self.every * np.arange(min(count, replayed)), len(own))
        arrival_s = (own.arrival_s[row] + again * len(own) / self.recorded_per_s) * slower
        return Requests(arrival_s, own.input_tokens[row], own.output_tokens[row], own.cached_tokens[row])


@dataclass(frozen=True)
class RecordedLengths(LoadShape):
    """Requests as long as those of a file, in a random order. One comes again only after all others have.

    Attributes:
        recorded: the requests of the file, all at once.
    """

    recorded: Requests | None = None

    def at(self, rate_per_s: float, *, count: int = COUNT) -> Requests:
        """So many requests at a rate."""
        assert self.recorded is not None
        rng = np.random.default_rng(self.seed)
        arrival_s = bursty(rate_per_s, count=count, variation=self.variation, rng=rng)
        rounds = [rng.permutation(len(self.recorded)) for _ in range(ceil(count / len(self.recorded)))]
        return replace(self.recorded.of(np.concatenate(rounds)[:count]), arrival_s=arrival_s)

    def of_clients(self, count: int) -> Requests:
        """So many requests, all at once."""
        return self.at(1.0, count=count).all_at_once()


def recorded_lengths(log: RequestLog, *, cached_share: float, longest: int | None) -> tuple[RecordedLengths, int]:
    """The lengths of a file's requests, and how many of them are cut to the model's context of `longest` tokens.

    Raises InputError where most requests exceed that.
    """
    read, written, cut = _within(log.name, log.input_tokens, log.output_tokens, longest=longest)
    load = RecordedLengths(
        lengths_of(read, written, longest=longest),
        cached_share=cached_share,
        recorded=requests(np.zeros(len(read)), read, written, cached_share=cached_share),
    )
    return load, cut


def recorded_load(log: RequestLog, *, cached_share: float, longest: int | None) -> tuple[RecordedLoad, int]:
    """The busiest part of a file, and how many of its requests are cut to the model's context of `longest` tokens.

    Raises InputError where most requests exceed that.
    """
    window = busiest(log)
    read, written, cut = _within(log.name, log.input_tokens[window], log.output_tokens[window], longest=longest)
    arrival_s = log.arrival_s[window] - log.arrival_s[window][0]
    if not arrival_s[-1]:
        raise InputError(f"the busiest {len(arrival_s):,} requests of {log.name} all come at the same time.")
    load = RecordedLoad(
        lengths_of(read, written, longest=longest),
        cached_share=cached_share,
        recorded=requests(arrival_s, read, written, cached_share=cached_share),
        recorded_per_s=(len(arrival_s) - 1) / float(arrival_s[-1]),
    )
    return load, cut


def _within(name: str, read: np.ndarray, written: np.ndarray, *, longest: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Tokens read and written within the model's context, and how many requests are cut."""
    if longest is None:
        return read, written, 0
    cut = int(np.sum(read + written > longest))
    if 2 * cut > len(read):
        raise InputError(
            f"{cut:,} of {len(read):,} requests of {name} exceed the model's context of {longest:,} tokens.",
            ["take a model with a longer context", "requests of a shorter kind"],
        )
    read = np.minimum(read, longest - 1)
    return read, np.minimum(written, longest - read), cut


def busiest(log: RequestLog) -> slice:
    """As many requests in a row as the busiest hour has, from FEWEST to WINDOW, that come in the shortest time."""
    count = len(log.arrival_s)
    of_hour = int((np.searchsorted(log.arrival_s, log.arrival_s + HOUR_S) - np.arange(count)).max())
    chosen = min(count, WINDOW, max(FEWEST, of_hour))
    spans = log.arrival_s[chosen - 1 :] - log.arrival_s[: count - chosen + 1]
    first = int(spans.argmin())
    return slice(first, first + chosen)


def lengths_of(read: np.ndarray, written: np.ndarray, *, longest: int | None) -> Lengths:
    """Means, variations and the correlation of logarithms of requests."""
    logs = np.log(read), np.log(written)
    both_vary = min(float(np.ptp(each)) for each in logs) > 0
    return Lengths(
        float(read.mean()),
        float(written.mean()),
        input_variation=float(read.std() / read.mean()),
        output_variation=float(written.std() / written.mean()),
        correlation=float(np.clip(np.corrcoef(*logs)[0, 1], -1, 1)) if both_vary else 0.0,
        longest=longest,
    )


def day_curve(log: RequestLog) -> DayCurve | None:
    """The mean rate of each hour of the day; None for a file of less than a day."""
    if log.span_s < HOURS * HOUR_S:
        return None
    hours = ((log.first_s + log.arrival_s) // HOUR_S % HOURS).astype(int)
    counts = np.bincount(hours, minlength=HOURS).astype(float)
    return day_of(log.name, counts / _hours_covered(log))


def _hours_covered(log: RequestLog) -> np.ndarray:
    """How often each hour of the day is in a file, in hours: whole days, and what is left of the last one."""
    days, left = divmod(log.span_s / HOUR_S, HOURS)
    begin = log.first_s / HOUR_S
    starts = np.arange(int(begin), int(np.ceil(begin + left)) + 1)
    covered = np.clip(np.minimum(starts + 1, begin + left) - np.maximum(starts, begin), 0.0, None)
    return days + np.bincount(starts % HOURS, weights=covered, minlength=HOURS)
