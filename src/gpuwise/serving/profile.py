"""PassProfile: a model's own passes, timed on this machine, and the forecast corrected by them.

A forecast prices passes of many sizes; a few of them are timed. What the forecast is off by at those (timed over forecast) is
interpolated between them, and multiplies every forecast, so that the forecast's own shape in requests and tokens stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.serving.continuous import IterationTime
from gpuwise.serving.pass_times import ForwardTimes, GenerationTimes, PassTimes, between_both
from gpuwise.serving.windowed import ServerCosts

FORWARD, PROMPT, TOKEN = "forward", "prompt", "token"
LEAST_SPREAD = 0.05  # below and above 1: the minute of the load may differ from that of the timing


@dataclass(frozen=True)
class TimedPass:
    """One size of pass, several times.

    Attributes:
        kind: FORWARD, PROMPT (a pass over whole prompts) or TOKEN (over one token of each request).
        requests: that ran together.
        tokens: of each prompt, or in the cache of each request; 0 of a forward pass.
        forecast_s: seconds as forecast.
        rounds_s: seconds as timed, one a round.
    """

    kind: str
    requests: int
    tokens: int
    forecast_s: float
    rounds_s: tuple[float, ...]

    @cached_property
    def seconds(self) -> Interval:
        """The median of the rounds, with their quartiles."""
        low, middle, high = np.percentile(self.rounds_s, (25, 50, 75))
        return Interval(float(middle), float(low), float(high))

    @property
    def ratio(self) -> float:
        """Timed over forecast."""
        return self.seconds.value / self.forecast_s

    def to_dict(self) -> dict[str, object]:
        seconds = self.seconds
        return {
            "kind": self.kind,
            "requests": self.requests,
            "tokens": self.tokens,
            "forecast_s": self.forecast_s,
            "timed_s": seconds.value,
            "quartiles_s": [seconds.low, seconds.high],
            "rounds": len(self.rounds_s),
        }


@dataclass(frozen=True)
class PassProfile:
    """What was timed before a load.

    Attributes:
        passes: by size.
        costs: what the server adds, and how passes of one size differ.
        took_s: seconds that the timing took.
    """

    passes: tuple[TimedPass, ...]
    costs: ServerCosts
    took_s: float

    @property
    def count(self) -> int:
        """Passes that were timed."""
        return sum(len(each.rounds_s) for each in self.passes)

    @property
    def idle_s(self) -> float | None:
        """Median seconds that a batch takes longer after an idle moment; None where the passes themselves carry them."""
        return float(np.median(self.costs.idle_s)) if self.costs.idle_s else None

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high of a round's passes over their medians: how this machine's speed drifts within 90 % of the rounds."""
        rounds = min(len(each.rounds_s) for each in self.passes)
        by_round = np.mean([np.array(each.rounds_s[:rounds]) / each.seconds.value for each in self.passes], axis=0)
        low, high = np.percentile(by_round, (5, 95))
        return min(1 - LEAST_SPREAD, float(low)), max(1 + LEAST_SPREAD, float(high))

    def to_dict(self) -> dict[str, object]:
        low, high = self.spread
        return {
            "passes": [each.to_dict() for each in self.passes],
            "count": self.count,
            "took_s": self.took_s,
            "spread": [low, high],
            "idle_s": self.idle_s,
            "between_s": self.costs.between_s,
        }


@dataclass(frozen=True)
class CorrectedIterations:
    """Iterations of an engine as forecast, multiplied by what was timed over its forecast.

    Attributes:
        forecast: seconds of an iteration.
        ratios: timed over forecast, by the new tokens of an iteration; linear in between.
        spread: low and high of measured over these times.
    """

    forecast: IterationTime
    ratios: Mapping[int, float]
    spread: tuple[float, float]

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        new = sequences + sum(tokens for tokens, _ in chunks)
        ratio = float(np.interp(new, sorted(self.ratios), [self.ratios[at] for at in sorted(self.ratios)]))
        return ratio * self.forecast(chunks, sequences, past_tokens)


def corrected_groups(times: PassTimes, profile: PassProfile) -> PassTimes:
    """The times of requests that run together, corrected at each size by what was timed."""
    if isinstance(times, ForwardTimes):
        ratios = {each.requests: each.ratio for each in profile.passes}
        return ForwardTimes(_corrected_row(times.passes, ratios, profile.spread))
    assert isinstance(times, GenerationTimes)
    reading, writing = (_ratios(profile, kind) for kind in (PROMPT, TOKEN))
    return GenerationTimes(
        _corrected_table(times.reading, reading, profile.spread), _corrected_table(times.writing, writing, profile.spread)
    )


def corrected_iterations(forecast: IterationTime, profile: PassProfile) -> CorrectedIterations:
    """Iterations of an engine, corrected by their new tokens: those of its prompts, or one a request."""
    by_new: dict[int, list[float]] = {}
    for each in profile.passes:
        new = each.requests * (each.tokens if each.kind == PROMPT else 1)
        by_new.setdefault(new, []).append(each.ratio)
    return CorrectedIterations(forecast, {new: float(np.mean(ratios)) for new, ratios in by_new.items()}, profile.spread)


def jitter_of(passes: Sequence[TimedPass]) -> tuple[float, ...]:
    """Seconds of every pass over the median of its size."""
    return tuple(seconds / each.seconds.value for each in passes for seconds in each.rounds_s)


def _ratios(profile: PassProfile, kind: str) -> dict[int, dict[int, Interval]]:
    """Timed over forecast, by requests and tokens."""
    table: dict[int, dict[int, Interval]] = {}
    for each in profile.passes:
        if each.kind == kind:
            table.setdefault(each.requests, {})[each.tokens] = Interval(each.ratio, each.ratio, each.ratio)
    return table


def _corrected_table(
    table: Mapping[int, Mapping[int, Interval]], ratios: Mapping[int, Mapping[int, Interval]], spread: tuple[float, float]
) -> dict[int, dict[int, Interval]]:
    """A table of seconds by requests and tokens. Beyond the sizes that were timed the nearest one's ratio counts."""
    low, high = spread
    most = max(ratios)
    corrected: dict[int, dict[int, Interval]] = {}
    for requests, row in table.items():
        factors = between_both(ratios, min(requests, most), list(row))
        seconds = {tokens: row[tokens].value * float(factor) for tokens, factor in zip(row, factors, strict=True)}
        corrected[requests] = {tokens: Interval(value, low * value, high * value) for tokens, value in seconds.items()}
    return corrected


def _corrected_row(
    row: Mapping[int, Interval], ratios: Mapping[int, float], spread: tuple[float, float]
) -> dict[int, Interval]:
    table = {size: {0: seconds} for size, seconds in row.items()}
    by_size = {size: {0: Interval(ratio, ratio, ratio)} for size, ratio in ratios.items()}
    return {size: seconds[0] for size, seconds in _corrected_table(table, by_size, spread).items()}
