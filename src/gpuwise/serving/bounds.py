"""rate_bound, clients_bound: what no instance exceeds, in closed form, without a queue.

An instance is busiest where as many sequences as its cache holds decode all the time, each iteration with the part of a prompt
that keeps their number constant. Time per token falls with the batch, so nothing serves more. A limit of the time per output
token bounds the batch in addition: an iteration takes no longer than it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from gpuwise.serving.continuous import IterationTime
from gpuwise.serving.generation import Generation
from gpuwise.serving.instance import Instance
from gpuwise.serving.requests import Requests
from gpuwise.serving.saturation import Limits

SLACK = 1.15  # over the closed form: a simulated load of some thousand requests ends by up to 5 % sooner than its mean says
STRICT = 0.9  # of requests within the limits, from which on their mean is within them, too


@dataclass(frozen=True)
class LoadMeans:
    """Means of a load.

    Attributes:
        read: tokens of a prompt that are computed.
        written: tokens of an answer.
        past: tokens in the cache of a sequence that decodes.
    """

    read: float
    written: float
    past: float

    @classmethod
    def of(cls, load: Requests) -> LoadMeans:
        """The means of these requests. Long answers decode longer, so `past` is weighted by them."""
        read = (load.input_tokens - load.cached_tokens).mean()
        written = load.output_tokens.astype(float)
        past = (written * (load.input_tokens + written / 2)).sum() / written.sum()
        return cls(float(read), float(written.mean()), float(past))


def rate_bound(instance: Instance, means: LoadMeans, limits: Limits) -> float:
    """Requests a second that an instance does not exceed within the limits; 0.0 where one sequence alone is too slow."""
    policy = instance.policy
    most = max(1, min(policy.sequences, int(policy.cache_tokens / means.past)))
    if policy.chunked:  # decoding sequences and parts of prompts share the tokens of an iteration
        most = max(1, min(most, int(policy.batched_tokens * means.written / (means.read + means.written))))
    if limits.share >= STRICT and instance.iteration_s((), 1, round(means.past)) > limits.tpot_s:
        return 0.0

    def seconds(batch: int) -> float:
        return _iteration_s(instance.iteration_s, means, batch, policy.batched_tokens)

    batch = _largest_within(seconds, most, limits.tpot_s) if limits.share >= STRICT else most
    return SLACK * batch / (means.written * seconds(batch))


def clients_bound(rate_per_s: float, load: Requests, limits: Limits, *, most: int) -> int:
    """Users, at most `most`, of whom an instance serves no more within the limits: by Little's law, those that are there are
    the requests that end a second times the seconds that each of them takes.

    rate_per_s: requests a second that the instance does not exceed, as rate_bound gives them.

    Requests beyond the limits are the long ones, so the mean request takes longer than the limit in no larger proportion than
    the mean length exceeds the longest one that must be within it.
    """
    if limits.share < STRICT or not rate_per_s:
        return most if rate_per_s else 0
    lengths = (load.input_tokens, load.output_tokens)
    skew = max(1.0, *(float(tokens.mean() / np.quantile(tokens, limits.share)) for tokens in lengths))
    further_s = limits.tpot_s * float(load.output_tokens.mean() - 1) if limits.tpot_s < np.inf else np.inf
    seconds = min(limits.latency_s, limits.ttft_s + further_s)
    return most if seconds == np.inf else min(most, ceil(rate_per_s * skew * seconds))


def _iteration_s(iteration_s: IterationTime, means: LoadMeans, batch: int, batched_tokens: int) -> float:
    """Mean seconds of iterations of a batch that stays as large as it is: each reads its part of the prompts or, as a pass
    that reads takes at least its launches, as few as can be read all of them."""
    past, new = round(batch * means.past), batch * means.read / means.written
    evenly_s = iteration_s(_chunks(means, new), batch, past)
    if new >= batched_tokens:
        return evenly_s
    writes_s, reads_s = (iteration_s(_chunks(means, tokens), batch, past) for tokens in (0, batched_tokens))
    return min(evenly_s, writes_s + (reads_s - writes_s) * new / batched_tokens)


def _chunks(means: LoadMeans, new: float) -> list[tuple[int, int]]:
    """Prompts of the mean length, and a part of one, with so many new tokens."""
    whole, part = divmod(round(new), max(1, round(means.read)))
    return [(round(means.read), 0)] * whole + ([(part, round((means.read - part) / 2))] if part else [])


def _largest_within(seconds: Callable[[int], float], most: int, limit_s: float) -> int:
    """The largest batch, up to `most`, whose iterations stay within a limit; at least 1. seconds: of those of a batch."""
    if seconds(most) <= limit_s:
        return most
    low, high = 1, most
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if seconds(middle) <= limit_s else (low, middle)
    return high


def shared_by(generation: Generation, devices: int) -> Generation:
    """A generation whose bytes several devices share without remainder: no real one takes less on each."""
    if devices == 1:
        return generation
    return replace(
        generation,
        weights=tuple(each.shared_by(devices) for each in generation.weights),
        cache_bytes_per_token=-(-generation.cache_bytes_per_token // devices),
        cache_bytes_per_sequence=generation.cache_bytes_per_sequence // devices,
        activation_bytes_per_token=generation.activation_bytes_per_token // devices,
    )


@dataclass(frozen=True)
class SharedIteration:
    """Iterations of one device, shared by several without communication; what the engine adds is not shared.

    Attributes:
        alone: seconds of iterations on one device.
        engine_s: seconds of each that the engine adds.
        devices: how many share them.
    """

    alone: IterationTime
    engine_s: float
    devices: int

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration. Arguments as for IterationTime."""
        return self.engine_s + (self.alone(chunks, sequences, past_tokens) - self.engine_s) / self.devices
