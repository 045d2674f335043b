"""An instance of a model on some devices: what users see of it at a rate, and the highest rate within their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.serving.arrivals import bursty
from gpuwise.serving.continuous import IterationTime, StopServing, serve
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.saturation import Limits, TooMany, narrowing
from gpuwise.serving.served import Served, capacity_of

COUNT = 2000  # requests of a simulated load; the first part, which meets an empty engine, is not counted
WARM_UP = 0.25
A_CLIENT = 10  # requests of each client in a closed loop, as InferenceX's benchmark sends them
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Latency:
    """Percentiles of one latency, in seconds, each with its 90 % interval; NaN where no request has it."""

    p50: Interval
    p90: Interval
    p99: Interval


@dataclass(frozen=True)
class Instance:
    """An instance that serves alone.

    Attributes:
        iteration_s: seconds of its iterations.
        policy: how it forms batches.
        spread: low and high of measured over forecast times of iterations.
        first_token_spread: the same of times to the first token; (1, 1) by default, no wider than iterations make it.
    """

    iteration_s: IterationTime
    policy: BatchingPolicy
    spread: tuple[float, float]
    first_token_spread: tuple[float, float] = field(default=(1.0, 1.0), kw_only=True)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.policy.cache_tokens

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        """The outcome of a load, where every iteration takes `factor` times its forecast."""
        return self.run(load, self.iteration_s if factor == 1 else _scaled(self.iteration_s, factor))

    def run(
        self, load: Requests, iteration_s: IterationTime, *, stop: StopServing | None = None, concurrency: int | None = None
    ) -> Served:
        """The outcome of a load with these times of iterations. stop, concurrency: as for gpuwise.serving.continuous.serve."""
        return serve(load, iteration_s, self.policy, stop=stop, concurrency=concurrency)

    def served_to(self, clients: int, loads: LoadShape, *, count: int | None = None, factor: float = 1.0) -> Served:
        """The outcome of a closed loop: each client sends its next request as soon as it has the answer to the last one.

        count: requests of all clients; None (default) for A_CLIENT from each.
        """
        load = loads.of_clients(count or clients * A_CLIENT)
        iteration_s = self.iteration_s if factor == 1 else _scaled(self.iteration_s, factor)
        return self.run(load, iteration_s, concurrency=clients)

    def outcomes(self, load: Requests) -> tuple[Served, Served, Served]:
        """The outcome of a load as forecast, and with iterations as much faster and slower as their spread says: waiting grows
        more than in proportion. Requests that met an engine which was still filling up are left out."""
        as_forecast, fast, slow = (steady(self.served(load, factor=factor)) for factor in (1.0, *self.spread))
        return as_forecast, fast, slow

    def capacity(self, loads: LoadShape) -> float:
        """Requests a second that end while others always wait."""
        return capacity_of(self.served(loads.at(1.0).all_at_once()))

    def saturation_rate(self, loads: LoadShape, limits: Limits) -> float:
        """The highest rate within the limits, in requests a second, at most the capacity; 0.0 where they hold at none."""
        *_, (rate, _) = self.narrowing(loads, limits)
        return rate

    def serves(self, loads: LoadShape, limits: Limits, rate_per_s: float) -> bool:
        """Whether that rate is at least as high as a given one."""
        return next((low >= rate_per_s for low, high in self.narrowing(loads, limits) if not low < rate_per_s <= high), False)

    def narrowing(self, loads: LoadShape, limits: Limits) -> Iterator[tuple[float, float]]:
        """Ever narrower bounds of that rate, as gpuwise.serving.saturation.narrowing gives them."""
        capacity = self.capacity(loads)
        if not capacity:
            yield 0.0, 0.0
            return
        yield 0.0, capacity

        def served_at(rate: float) -> Served:
            load = loads.at(rate)
            return steady(self.run(load, self.iteration_s, stop=TooMany(limits, load, _warm(load))))

        yield from narrowing(served_at, limits, start=capacity, highest=capacity)

    def alone(self, loads: LoadShape) -> Served:
        """The outcome of the mean request, with nobody else there: no limit can be below."""
        read, written = max(1, round(loads.lengths.input_tokens)), max(1, round(loads.lengths.output_tokens))
        return self.served(requests(np.zeros(1), np.array([read]), np.array([written]), cached_share=loads.cached_share))


@dataclass(frozen=True)
class LoadShape:
    """Requests whose rate is open: the same ones at every rate, so that only the rate differs.

    Attributes:
        lengths: of prompts and answers.
        cached_share: share of each prompt that the prefix cache holds; 0 by default.
        variation: of the gaps between arrivals; 1 (default) is Poisson.
        seed: of the random numbers; 0 by default.
    """

    lengths: Lengths
    cached_share: float = 0.0
    variation: float = 1.0
    seed: int = 0

    def at(self, rate_per_s: float, *, count: int = COUNT) -> Requests:
        """The requests at a rate."""
        rng = np.random.default_rng(self.seed)
        arrival_s = bursty(rate_per_s, count=count, variation=self.variation, rng=rng)
        read, written = self.lengths.drawn(count, rng)
        return requests(arrival_s, read, written, cached_share=self.cached_share)

    @property
    def is_in_bursts(self) -> bool:
        """Whether each of several instances has more even requests than all of them together."""
        return self.variation > 1

    def dealt(self, instances: int) -> LoadShape:
        """What each of so many instances gets where requests reach them in turn.

        Its gaps are sums of as many gamma distributed ones, whose variation falls with the root of their number. They are
        taken to be no more even than those of independent users.
        """
        return replace(self, variation=max(1.0, self.variation / instances**0.5)) if self.is_in_bursts else self

    def of_clients(self, count: int) -> Requests:
        """So many requests of clients in a closed loop, all at once: their arrivals are those that the clients make.

        Lengths are drawn evenly: a loop of few users has few requests, whose means would miss those of all by a tenth.
        """
        read, written = self.lengths.drawn_evenly(count, np.random.default_rng(self.seed))
        return requests(np.zeros(count), read, written, cached_share=self.cached_share)


def latencies(outcomes: Sequence[Served], first_token_spread: tuple[float, float] = (1.0, 1.0)) -> dict[str, Latency]:
    """Time to first token, time per output token and whole latency, by name, of the outcomes that Instance.outcomes gives.

    first_token_spread: of the instance. Queues, tokenizers and HTTP differ by more than iterations do.
    """
    spreads = {"ttft_s": first_token_spread, "tpot_s": (1.0, 1.0), "latency_s": (1.0, 1.0)}
    return {
        name: Latency(*(_interval([_percentile(getattr(outcome, name), p) for outcome in outcomes], wide) for p in PERCENTILES))
        for name, wide in spreads.items()
    }


def _interval(values: Sequence[float], spread: tuple[float, float]) -> Interval:
    """The first of three values, with the others as bounds, at least as wide as the spread around it."""
    value, low, high = values
    return Interval(value, min(low, spread[0] * value), max(high, spread[1] * value))


def _percentile(values: np.ndarray, percent: float) -> float:
    finite = values[~np.isnan(values)]
    return float(np.percentile(finite, percent)) if len(finite) else float("nan")


def steady(served: Served) -> Served:
    """The outcome without the requests that met an engine which was still filling up."""
    rest = slice(_warm(served.requests), None)
    return replace(
        served, requests=served.requests.of(rest), first_token_s=served.first_token_s[rest], end_s=served.end_s[rest]
    )


def _warm(load: Requests) -> int:
    """Index of the first request that counts."""
    return int(WARM_UP * len(load))


def _scaled(iteration_s: IterationTime, factor: float) -> IterationTime:
    def scaled(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        return factor * iteration_s(chunks, sequences, past_tokens)

    return scaled
