"""How long requests are: tokens read and written, with their spread and their correlation."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

ROUND = 50  # requests that are drawn together where they are drawn evenly
_INVERSE = NormalDist().inv_cdf
_LEAST_SHARE = 2.0**-40  # 0 and 1 have no normal number


@dataclass(frozen=True)
class Lengths:
    """Log-normal lengths of prompts and answers.

    Attributes:
        input_tokens, output_tokens: means.
        input_variation, output_variation: standard deviation over mean; 0 (default) gives every request the mean.
        correlation: of the logarithms of both, from -1 to 1; 0 by default. Long questions often get long answers.
        longest: limit of input and output together, the model's context; None (default) for none.
    """

    input_tokens: float
    output_tokens: float
    input_variation: float = 0.0
    output_variation: float = 0.0
    correlation: float = 0.0
    longest: int | None = None

    def __post_init__(self) -> None:
        if min(self.input_tokens, self.output_tokens) < 1:
            raise InputError("Requests must read and write at least one token on average.")
        if min(self.input_variation, self.output_variation) < 0 or not -1 <= self.correlation <= 1:
            raise InputError(
                "The spread of lengths must be 0 or more, and the correlation of prompts with answers from -1 to 1.",
                ["--spread 0: all are equally long", "--spread 1: their standard deviation is their mean"],
            )
        if self.longest is not None and self.input_tokens + self.output_tokens > self.longest:
            raise InputError(
                f"{self.input_tokens:g} tokens read and {self.output_tokens:g} written are more than the model's context of "
                f"{self.longest:,} tokens.",
                ["shorten the prompts or the answers", "take a model with a longer context"],
            )

    def drawn(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Input and output tokens of `count` requests. What exceeds `longest` is cut: first the answer, then the prompt."""
        return self._of_normals(*rng.standard_normal((2, count)))

    def drawn_evenly(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `drawn`, so that few requests have the means of all: ROUND in a row are of as many ranges, all equally likely."""
        return self._of_normals(_normals_evenly(count, rng), _normals_evenly(count, rng))

    def _of_normals(
        self, first: NDArray[np.float64], second: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        second = self.correlation * first + np.sqrt(1 - self.correlation**2) * second
        read = _log_normal(self.input_tokens, self.input_variation, first)
        written = _log_normal(self.output_tokens, self.output_variation, second)
        if self.longest is not None:
            read = np.minimum(read, self.longest - 1)
            written = np.minimum(written, self.longest - read)
        return read, written


def _normals_evenly(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Standard normal numbers, each ROUND of them stratified (McKay, Beckman, Conover 1979: Latin hypercube sampling)."""
    rounds = -(-count // ROUND)
    stratum = rng.permuted(np.tile(np.arange(ROUND), (rounds, 1)), axis=1).ravel()[:count]
    shares = np.clip((stratum + rng.random(count)) / ROUND, _LEAST_SHARE, 1 - _LEAST_SHARE)
    return np.array([_INVERSE(share) for share in shares.tolist()])


def _log_normal(mean: float, variation: float, normal: NDArray[np.float64]) -> NDArray[np.int64]:
    spread = np.log1p(variation**2)
    values = mean * np.exp(np.sqrt(spread) * normal - spread / 2)
    return np.maximum(1, np.rint(values)).astype(np.int64)
