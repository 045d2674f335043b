"""PaddedTimes: forward passes over samples of different lengths, padded to the longest of a batch or to the end of a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving.requests import Requests
from gpuwise.serving.windowed import GroupTime


@dataclass(frozen=True)
class PaddedTimes:
    """A model without a cache whose samples have tokens: a batch takes as long as one of samples that all are padded alike.

    Attributes:
        passes: times of passes by the tokens of every sample; between two numbers of tokens they are linear, and below the
            smallest they are its.
        drawn: requests whose lengths say what a usual batch takes.
        buckets: rising most tokens of buckets. A batch is of one, and padded to its end, where it is priced. Empty (default):
            batches of any requests are padded to the longest of them.
    """

    passes: Mapping[int, ForwardTimes]
    drawn: Requests
    buckets: tuple[int, ...] = ()
    _seconds: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Low and high of measured over forecast times of passes."""
        spreads = [times.spread for times in self.passes.values()]
        low, high = (float(np.median(ends)) for ends in zip(*spreads, strict=True))
        return low, high

    @property
    def sizes(self) -> list[int]:
        """Numbers of samples that are priced."""
        return sorted(next(iter(self.passes.values())).passes)

    def padded_s(self, samples: int, tokens: int) -> float:
        """Seconds of a pass of so many samples, the longest of which has so many tokens."""
        at = self._end_of(tokens)
        if (samples, at) not in self._seconds:
            points = sorted(self.passes)
            seconds = [self.passes[point].pass_s(samples) for point in points]
            self._seconds[samples, at] = float(np.interp(at, points, seconds))
        return self._seconds[samples, at]

    def pass_s(self, samples: int) -> float:
        """Mean seconds of a full batch, while others always wait."""
        total, count = 0.0, 0
        for tokens in self._lengths_by_bucket():
            full = len(tokens) // samples * samples
            # Of a bucket with fewer requests than fill a batch: as if its longest one came again.
            longest = tokens[:full].reshape(-1, samples).max(axis=1) if full else tokens.max(keepdims=True)
            total += len(tokens) * float(np.mean([self.padded_s(samples, each) for each in longest.tolist()]))
            count += len(tokens)
        return total / count

    def interval(self, samples: int) -> Interval:
        """The same with its 90 % interval."""
        seconds, (low, high) = self.pass_s(samples), self.spread
        return Interval(seconds, low * seconds, high * seconds)

    def bucket_of(self, load: Requests) -> list[int] | None:
        """The bucket of each request; None where all run together."""
        return np.searchsorted(self.buckets, load.input_tokens).tolist() if self.buckets else None

    def group_s(self, load: Requests) -> GroupTime:
        """Seconds of groups of a load's requests."""
        tokens = load.input_tokens.tolist()

        def of_group(group: Sequence[int]) -> tuple[float, float]:
            seconds = self.padded_s(len(group), max(tokens[request] for request in group))
            return seconds, seconds

        return of_group

    def _end_of(self, tokens: int) -> int:
        """What samples of so many tokens are padded to."""
        at = int(np.searchsorted(self.buckets, tokens))
        return self.buckets[at] if at < len(self.buckets) else tokens

    def _lengths_by_bucket(self) -> list[np.ndarray]:
        tokens, buckets = self.drawn.input_tokens, self.bucket_of(self.drawn)
        return [tokens] if buckets is None else [tokens[np.array(buckets) == each] for each in sorted(set(buckets))]


def priced_lengths(shortest: int, longest: int, *, least: int = 16) -> list[int]:
    """Tokens at which passes are priced: powers of two from the largest that is at most `shortest`, `least` or more, and
    `longest`."""
    point = least
    while 2 * point <= shortest:
        point *= 2
    points = []
    while point < longest:
        points.append(point)
        point *= 2
    return [*points, longest]
