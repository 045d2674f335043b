"""What requests take on a server of plain PyTorch, from the times of its passes: forward passes, or prompts and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuwise.cost.forecast import Interval
from gpuwise.serving.requests import Requests
from gpuwise.serving.windowed import GroupTime


class PassTimes(Protocol):
    """Times of requests that run together."""

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high of measured over forecast times of passes."""
        ...

    def group_s(self, load: Requests) -> GroupTime:
        """Seconds of groups of a load's requests."""
        ...


@dataclass(frozen=True)
class ForwardTimes:
    """A model without a cache: a request is a sample of one forward pass.

    Attributes:
        passes: seconds of a forward pass by its samples; between two numbers of samples they are linear.
    """

    passes: Mapping[int, Interval]

    @property
    def spread(self) -> tuple[float, float]:
        return _spread(list(self.passes.values()))

    def pass_s(self, samples: int) -> float:
        """Seconds of a forward pass."""
        return self._by_samples[min(samples, len(self._by_samples)) - 1]

    @property
    def sizes(self) -> list[int]:
        """Numbers of samples that are priced."""
        return sorted(self.passes)

    def interval(self, samples: int) -> Interval:
        """A pass that is priced, with its 90 % interval."""
        return self.passes[samples]

    def bucket_of(self, load: Requests) -> list[int] | None:
        """Requests do not differ, so all run together."""
        return None

    @cached_property
    def _by_samples(self) -> list[float]:
        """Seconds of passes of 1, 2, 3 and more samples: loads look them up thousands of times."""
        return [float(seconds) for seconds in _between(self.passes, np.arange(1, max(self.passes) + 1))]

    def group_s(self, load: Requests) -> GroupTime:
        def of_group(group: Sequence[int]) -> tuple[float, float]:
            seconds = self.pass_s(len(group))
            return seconds, seconds

        return of_group


@dataclass(frozen=True)
class GenerationTimes:
    """A model that generates: a group reads its prompts in one pass, then writes a token of each sequence a pass.

    Attributes:
        reading: seconds of a pass over prompts, by sequences and by the tokens of each prompt.
        writing: seconds of a pass over one token each, by sequences and by the tokens in the cache of each.

    Between two numbers of tokens, and of sequences, seconds are linear.
    """

    reading: Mapping[int, Mapping[int, Interval]]
    writing: Mapping[int, Mapping[int, Interval]]

    @property
    def spread(self) -> tuple[float, float]:
        return _spread([each for table in (self.reading, self.writing) for row in table.values() for each in row.values()])

    def group_s(self, load: Requests) -> GroupTime:
        def of_group(group: Sequence[int]) -> tuple[float, NDArray[np.float64]]:
            outputs = load.output_tokens[group]
            prompt = int(load.input_tokens[group].max())
            first_s = float(between_both(self.reading, len(group), [prompt])[0])
            past = np.arange(prompt, prompt + int(outputs.max()) - 1)
            ends_s = np.concatenate([[first_s], first_s + np.cumsum(between_both(self.writing, len(group), past))])
            return first_s, ends_s[outputs - 1]

        return of_group


@dataclass(frozen=True)
class PackedTimes:
    """Iterations of a server that packs all new tokens into one row, whose attention reads the caches of all sequences, as
    Transformers' continuous batching does without kernels of its own (an IterationTime of gpuwise.serving.continuous).

    Attributes:
        passes: seconds of a pass by its new tokens, and by the tokens in all caches; linear in between.
    """

    passes: Mapping[int, Mapping[int, Interval]]

    @property
    def spread(self) -> tuple[float, float]:
        return _spread([each for row in self.passes.values() for each in row.values()])

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        new = sequences + sum(tokens for tokens, _ in chunks)
        past = past_tokens + sum(tokens for _, tokens in chunks)
        return float(between_both(self.passes, new, [past])[0])


def sizes_up_to(most: int, *, least: int = 1) -> list[int]:
    """1, the powers of two from `least` to below `most`, and `most`."""
    powers = [2**power for power in range(ceil(log2(least)), ceil(log2(most)))] if most > 1 else []
    return sorted({1, *powers, most})


def between_both(
    table: Mapping[int, Mapping[int, Interval]], sequences: int, tokens: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.float64]:
    """The values of a table at some numbers of tokens, linear between those of its rows and columns."""
    points = sorted(table)
    by_sequences = np.stack([_between(table[point], tokens) for point in points])
    high = min(int(np.searchsorted(points, sequences)), len(points) - 1)
    low = max(high - 1, 0) if points[high] != sequences else high
    share = (sequences - points[low]) / (points[high] - points[low]) if high > low else 0.0
    mixed: NDArray[np.float64] = (1 - share) * by_sequences[low] + share * by_sequences[high]
    return mixed


def _between(row: Mapping[int, Interval], numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    points = sorted(row)
    return np.interp(numbers, points, [row[point].value for point in points])


def _spread(intervals: Sequence[Interval]) -> tuple[float, float]:
    low, high = (float(np.median([getattr(each, end) / each.value for each in intervals])) for end in ("low", "high"))
    return low, high
