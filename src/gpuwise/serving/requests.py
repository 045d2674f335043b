"""Requests: what arrives at a server, when, and how many tokens each reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError


@dataclass(frozen=True)
class Requests:
    """Requests in the order of their arrival, one element of each array a request.

    Attributes:
        arrival_s: seconds since the first second of the load, never falling.
        input_tokens: tokens of the prompt, at least 1. Of a model without a cache: units of one forward pass.
        output_tokens: tokens written, at least 1.
        cached_tokens: leading tokens of the prompt whose keys and values another request left in the prefix cache; fewer than
            `input_tokens`, since the last token is always computed.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]

    def __post_init__(self) -> None:
        sizes = {len(self.arrival_s), len(self.input_tokens), len(self.output_tokens), len(self.cached_tokens)}
        if len(sizes) != 1:
            raise InputError("The arrays of requests differ in length.")
        if not len(self):
            return
        if not np.all(np.isfinite(self.arrival_s)) or self.arrival_s[0] < 0 or np.any(np.diff(self.arrival_s) < 0):
            raise InputError("Requests must arrive at finite times from 0 s on, in order.")
        if min(self.input_tokens.min(), self.output_tokens.min()) < 1:
            raise InputError("A request must read and write at least one token.")
        if np.any(self.cached_tokens < 0) or np.any(self.cached_tokens >= self.input_tokens):
            raise InputError("Cached tokens must be fewer than the prompt's.")

    def __len__(self) -> int:
        return len(self.arrival_s)

    def of(self, chosen: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Requests:
        """Some of the requests, at the same times."""
        return Requests(
            self.arrival_s[chosen], self.input_tokens[chosen], self.output_tokens[chosen], self.cached_tokens[chosen]
        )

    def all_at_once(self) -> Requests:
        """The same requests, all of which arrive in the load's first second."""
        return replace(self, arrival_s=np.zeros(len(self)))


def requests(
    arrival_s: NDArray[np.float64],
    input_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    *,
    cached_share: float = 0.0,
) -> Requests:
    """Requests whose prefix cache holds a share of each prompt.

    cached_share: from 0 to below 1, of each prompt's tokens, rounded down; 0 by default.
    """
    if not 0 <= cached_share < 1:
        raise InputError(f"The share of cached tokens must be from 0 to below 1: {cached_share:g}.")
    cached = np.minimum((input_tokens * cached_share).astype(np.int64), input_tokens - 1)
    return Requests(
        np.asarray(arrival_s, float), np.asarray(input_tokens, np.int64), np.asarray(output_tokens, np.int64), cached
    )
