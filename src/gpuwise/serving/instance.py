"""An instance of a model on some devices: what users see of it at a rate, and the highest rate within their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.serving.continuous import IterationTime, serve
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.saturation import Limits, saturation_rate
from gpuwise.serving.served import Served

COUNT = 2000  # requests of a simulated load; the first part, which meets an empty engine, is not counted
WARM_UP = 0.25
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
    """

    iteration_s: IterationTime
    policy: BatchingPolicy
    spread: tuple[float, float]

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        """The outcome of a load, where every iteration takes `factor` times its forecast."""
        return serve(load, self.iteration_s if factor == 1 else _scaled(self.iteration_s, factor), self.policy)

    def saturation_rate(self, loads: LoadShape, limits: Limits, *, factor: float = 1.0) -> float:
        """The highest rate within the limits, in requests a second."""
        start = 1.0 / max(self.alone_s(loads)[1], 1e-6)
        return saturation_rate(lambda rate: _steady(self.served(loads.at(rate), factor=factor)), limits, start=start)

    def alone_s(self, loads: LoadShape) -> tuple[float, float]:
        """Time to first token and whole latency of the mean request, with nobody else there: no limit can be below."""
        read, written = max(1, round(loads.lengths.input_tokens)), max(1, round(loads.lengths.output_tokens))
        alone = requests(np.zeros(1), np.array([read]), np.array([written]), cached_share=loads.cached_share)
        served = serve(alone, self.iteration_s, self.policy)
        return float(served.ttft_s[0]), float(served.latency_s[0])


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
        shape = 1 / self.variation**2
        gaps = rng.gamma(shape, 1 / shape, count)
        read, written = self.lengths.drawn(count, rng)
        return requests(np.cumsum(gaps) / rate_per_s, read, written, cached_share=self.cached_share)


def latencies(instance: Instance, load: Requests) -> dict[str, Latency]:
    """Time to first token, time per output token and whole latency at a load, by name.

    The ends of an interval are simulated with iterations as much faster and slower as their spread says: waiting grows more
    than in proportion.
    """
    low, high = instance.spread
    outcomes = [_steady(instance.served(load, factor=factor)) for factor in (1.0, low, high)]
    return {
        name: Latency(*(_interval([float(_percentile(getattr(o, name), p)) for o in outcomes]) for p in PERCENTILES))
        for name in ("ttft_s", "tpot_s", "latency_s")
    }


def _interval(values: Sequence[float]) -> Interval:
    value, low, high = values
    return Interval(value, min(low, value), max(high, value))


def _percentile(values: np.ndarray, percent: float) -> float:
    finite = values[~np.isnan(values)]
    return float(np.percentile(finite, percent)) if len(finite) else float("nan")


def _steady(served: Served) -> Served:
    """The outcome without the requests that met an engine which was still filling up."""
    rest = slice(int(WARM_UP * len(served.requests)), None)
    return replace(
        served, requests=served.requests.of(rest), first_token_s=served.first_token_s[rest], end_s=served.end_s[rest]
    )


def _scaled(iteration_s: IterationTime, factor: float) -> IterationTime:
    def scaled(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        return factor * iteration_s(chunks, sequences, past_tokens)

    return scaled
