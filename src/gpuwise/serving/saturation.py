"""The highest rate of requests that an instance serves within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import InputError
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served

STEPS = 6  # halvings of the ratio between a rate that holds and one that does not: to 1 %, where other seeds move it by 5 %
LOWEST = 2.0**-30  # of the first rate: where the limits do not hold there, they hold at none
EARLY = 4  # rates without success after which the lowest one is tried


@dataclass(frozen=True)
class Limits:
    """What users accept.

    Attributes:
        ttft_s: time to first token; for a model without a cache the whole answer.
        tpot_s: time per output token after the first.
        latency_s: from the arrival to the last token.
        share: of all requests that must stay within all three; 0.99 by default.
    """

    ttft_s: float = np.inf
    tpot_s: float = np.inf
    latency_s: float = np.inf
    share: float = 0.99

    def __post_init__(self) -> None:
        if (least := min(self.ttft_s, self.tpot_s, self.latency_s)) <= 0:
            raise InputError(f"a limit of latency must be above 0 s, got {least:g} s.", ["--slo ttft=500ms,tpot=50ms"])
        if not 0 < self.share <= 1:
            raise InputError(
                f"the share of requests within the limits must be above 0 and at most 1, got {self.share:g}.",
                ["--slo ttft=500ms,share=0.95"],
            )

    def hold(self, served: Served) -> bool:
        """Whether enough requests stayed within the limits."""
        return self.share_of(served) >= self.share

    def share_of(self, served: Served) -> float:
        """Share of the requests that stayed within all limits."""
        return served.share_within(ttft_s=self.ttft_s, tpot_s=self.tpot_s, latency_s=self.latency_s)


class TooMany:
    """Stops a load (gpuwise.serving.continuous.StopServing) once more of its requests than allowed have exceeded the limits.

    Arguments:
        limits: that must hold.
        load: its requests.
        first: index of the first one that counts.
    """

    def __init__(self, limits: Limits, load: Requests, first: int) -> None:
        self._limits, self._first = limits, first
        self._count, self._exceeded = len(load) - first, 0
        self._arrival_s, self._gaps = load.arrival_s.tolist(), (load.output_tokens - 1).tolist()

    def __call__(self, index: int, first_s: float, end_s: float) -> bool:
        """Counts a request that ended."""
        if index < self._first:
            return False
        arrival_s, gaps, limits = self._arrival_s[index], self._gaps[index], self._limits
        self._exceeded += (
            first_s - arrival_s > limits.ttft_s
            or (gaps > 0 and (end_s - first_s) / gaps > limits.tpot_s)
            or end_s - arrival_s > limits.latency_s
        )
        return (self._count - self._exceeded) / self._count < limits.share


def saturation_rate(served_at: Callable[[float], Served], limits: Limits, *, start: float, highest: float = 1e6) -> float:
    """The highest rate, in requests a second, at which the limits hold; 0.0 where they hold at none.

    Arguments:
        served_at: serves a load at a rate. The same requests in the same order at every rate, so that only the rate differs.
        start: rate from which the search doubles or halves.
        highest: rate beyond which nothing is tried; it is returned where the limits hold there, too.
    """
    *_, (rate, _) = narrowing(served_at, limits, start=start, highest=highest)
    return rate


def narrowing(
    served_at: Callable[[float], Served], limits: Limits, *, start: float, highest: float = 1e6
) -> Iterator[tuple[float, float]]:
    """Ever narrower bounds of that rate, one pair after each load that was served; the first of the last pair is the rate.

    Arguments as for saturation_rate.
    """
    low, high = 0.0, np.inf
    rate = start
    failures = 0
    while not (low and np.isfinite(high)):
        if limits.hold(served_at(rate)):
            low = rate
            if rate >= highest:
                yield highest, highest
                return
            rate = min(rate * 2, highest)
        else:
            high = rate
            rate /= 2
            failures += 1
            if failures == EARLY and not limits.hold(served_at(start * LOWEST)):
                yield 0.0, 0.0
                return
            if rate < start * LOWEST:
                yield 0.0, 0.0
                return
        yield low, high
    for _ in range(STEPS):
        middle = float(np.sqrt(low * high))
        if limits.hold(served_at(middle)):
            low = middle
        else:
            high = middle
        yield low, high
    yield low, low
