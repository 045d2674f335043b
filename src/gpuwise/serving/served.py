"""Served: what happened to each request, and what users see of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.serving.requests import Requests

MIDDLE = (0.25, 0.75)  # of the requests by their end: beside them the batches fill up and run empty


@dataclass(frozen=True)
class Served:
    """The outcome of a load, one element of each array a request; NaN where the request was turned away.

    Attributes:
        requests: the load. With a fixed concurrency its arrivals are those that the clients made.
        first_token_s, end_s: when the first and the last token were there, in seconds since the load's first second.
        iterations: passes of the model.
        busy_s: seconds in which the model ran.
        preemptions: how often a running sequence lost its cache to others, and was computed again.
    """

    requests: Requests
    first_token_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    iterations: int
    busy_s: float
    preemptions: int = 0

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        """Time to first token: from the arrival, waiting included."""
        return self.first_token_s - self.requests.arrival_s

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """Time per output token: (last token - first token) / (tokens - 1); NaN where one token was written."""
        gaps = self.requests.output_tokens - 1
        return np.where(gaps > 0, (self.end_s - self.first_token_s) / np.maximum(gaps, 1), np.nan)

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """From the arrival to the last token."""
        return self.end_s - self.requests.arrival_s

    @property
    def turned_away(self) -> int:
        """Requests that met a full queue, that the cache can never hold, or whose client left."""
        return int(np.isnan(self.end_s).sum())

    @property
    def span_s(self) -> float:
        """From the first arrival to the last token; 0 where nothing was served."""
        done = self.end_s[~np.isnan(self.end_s)]
        return float(done.max() - self.requests.arrival_s[0]) if len(done) else 0.0

    @property
    def utilisation(self) -> float:
        """Share of the span in which the model ran."""
        return self.busy_s / self.span_s if self.span_s else 0.0

    def share_within(self, *, ttft_s: float = np.inf, tpot_s: float = np.inf, latency_s: float = np.inf) -> float:
        """Share of all requests, those turned away included, that stay within every limit."""
        if not len(self.requests):
            return 1.0
        tpot = np.where(np.isnan(self.tpot_s) & ~np.isnan(self.end_s), 0.0, self.tpot_s)
        within = (self.ttft_s <= ttft_s) & (tpot <= tpot_s) & (self.latency_s <= latency_s)
        return float(np.mean(within))


def span_with_work_s(arrival_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> float:
    """Seconds in which some request has arrived and not ended. Requests whose end is NaN do not count."""
    ended = ~np.isnan(end_s)
    order = np.argsort(arrival_s[ended], kind="stable")
    starts, ends = arrival_s[ended][order], np.maximum.accumulate(end_s[ended][order])
    idle_before = np.maximum(starts[1:] - ends[:-1], 0.0)
    return float(ends[-1] - starts[0] - idle_before.sum()) if len(ends) else 0.0


def capacity_of(served: Served) -> float:
    """Requests a second that end while others wait, from a load whose requests come all at once.

    Requests of a batch may end together, so the middle of the load is bounded by ends that differ.
    """
    ends_s = np.sort(served.end_s[~np.isnan(served.end_s)])
    if not len(ends_s):
        return 0.0
    first, last = (int(share * (len(ends_s) - 1)) for share in MIDDLE)
    before, within = (int(np.searchsorted(ends_s, ends_s[at], side="right")) for at in (first, last))
    if within > before:
        return (within - before) / float(ends_s[last] - ends_s[first])
    return len(ends_s) / float(ends_s[-1])
