"""Speculative decoding: a draft writes some tokens ahead, and the model checks them in one pass (Leviathan et al. 2023,
arXiv:2211.17192).

A token of the draft is accepted with a constant probability, each after the first only if all before it are; the model adds
one token of its own. So an iteration gives a sequence 1 to K + 1 tokens, a truncated geometric law with the mean
(1 - a^(K+1)) / (1 - a).

The queue is simulated in strides of that mean: a sequence decodes for as many iterations as its own random numbers take to
write its answer, while prompts and cache count in strides. So the same event loop serves, as fast as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.serving.continuous import IterationTime, StopServing, serve
from gpuwise.serving.instance import Instance
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served
from gpuwise.serving.step_time import EngineStep

SEED = 0
MOST_DRAFT_TOKENS = 64


@dataclass(frozen=True)
class Speculation:
    """How many tokens are drafted, and how often they are accepted.

    Attributes:
        draft_tokens: tokens that the draft writes ahead in each iteration, 1 to MOST_DRAFT_TOKENS.
        acceptance: probability that the model accepts one, where it accepted all before it; from 0 to below 1.
    """

    draft_tokens: int
    acceptance: float

    def __post_init__(self) -> None:
        if not 1 <= self.draft_tokens <= MOST_DRAFT_TOKENS:
            raise InputError(f"A draft writes 1 to {MOST_DRAFT_TOKENS} tokens ahead, not {self.draft_tokens:,}.")
        if not 0 <= self.acceptance < 1:
            raise InputError(
                f"The acceptance of a token must be from 0 to below 1, not {self.acceptance:g}.", ["--acceptance 0.7 is 70 %"]
            )

    @property
    def stride(self) -> float:
        """Mean tokens that an iteration gives a sequence."""
        return float((1 - self.acceptance ** (self.draft_tokens + 1)) / (1 - self.acceptance))

    def tokens_of(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Tokens of each of `count` iterations of a sequence: those accepted, and one of the model."""
        # A run of accepted tokens is geometric; numpy counts the token that ends it, too, as the model adds one.
        return np.minimum(rng.geometric(1 - self.acceptance, count), self.draft_tokens + 1)

    def iterations_of(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Iterations after which each of some sequences has written so many tokens; 0 for none."""
        written = np.concatenate([[0], np.cumsum(self.tokens_of(int(tokens.sum()) + 1, rng))])
        iterations = np.zeros(len(tokens), dtype=np.int64)
        start = 0
        for index, count in enumerate(tokens.tolist()):
            end = int(np.searchsorted(written, written[start] + count))
            iterations[index], start = end - start, end
        return iterations


@dataclass(frozen=True)
class SpeculativeStep:
    """Seconds of iterations (see gpuwise.serving.continuous.IterationTime) that draft and check.

    Attributes:
        model: seconds of the model that checks.
        draft: seconds of the draft, with what the engine adds to each of its passes; None where the next tokens are looked up
            in the text so far.
        draft_tokens: tokens that are drafted.
        expands: whether the model checks each drafted token as a sequence of its own, which reads the whole cache again.
    """

    model: EngineStep
    draft: EngineStep | None
    draft_tokens: int
    expands: bool = False

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration. Arguments as for IterationTime."""
        each, reads = self.draft_tokens + 1, bool(chunks)
        users = sequences * each if self.expands else sequences
        kernels_s = self.model.head_s(sequences * each + len(chunks))
        if self.expands:
            kernels_s += self.model.layers_s(chunks, users, past_tokens * each)
        else:
            kernels_s += self.model.layers_s(chunks, sequences, past_tokens, new=each)
        seconds = self.model.engine_s(users + len(chunks)) + max(kernels_s, self.model.launching_s(reads=reads))
        if self.draft is None:
            return seconds
        if sequences:
            once_s = self.draft.layers_s((), sequences, past_tokens) + self.draft.head_s(sequences)
            once_s = max(once_s, self.draft.launching_s(reads=False))
            seconds += self.draft_tokens * (once_s + self.draft.engine_s(sequences))
        if chunks:  # the draft reads prompts, too
            seconds += max(self.draft.layers_s(chunks, 0, 0), self.draft.launching_s(reads=True))
        return seconds


@dataclass(frozen=True)
class SpeculativeInstance(Instance):
    """An instance that drafts and checks.

    Attributes:
        speculation: how many tokens are drafted and accepted. iteration_s is of its iterations, policy of tokens.
    """

    speculation: Speculation = Speculation(1, 0.0)

    def run(
        self, load: Requests, iteration_s: IterationTime, *, stop: StopServing | None = None, concurrency: int | None = None
    ) -> Served:
        """Serves a load in strides."""
        stride = self.speculation.stride
        policy = in_strides(self.policy, stride)
        strides, stride_s = strides_of(load, self.speculation), _of_strides(iteration_s, stride)
        served = serve(strides, stride_s, policy, stop=stop, concurrency=concurrency)
        return replace(served, requests=replace(load, arrival_s=served.requests.arrival_s))


def strides_of(load: Requests, speculation: Speculation) -> Requests:
    """The load in strides: prompts in their number, answers in iterations of which the first follows the prompt."""
    rng = np.random.default_rng(SEED)
    read = np.maximum(1, np.round(load.input_tokens / speculation.stride)).astype(np.int64)
    cached = np.minimum(np.round(load.cached_tokens / speculation.stride).astype(np.int64), read - 1)
    return Requests(load.arrival_s, read, 1 + speculation.iterations_of(load.output_tokens - 1, rng), cached)


def in_strides(policy: BatchingPolicy, stride: float) -> BatchingPolicy:
    """The policy where a token is a stride."""
    return replace(
        policy,
        batched_tokens=max(1, round(policy.batched_tokens / stride)),
        cache_tokens=max(1, int(policy.cache_tokens / stride)),
        block_tokens=max(1, round(policy.block_tokens / stride)),
    )


def _of_strides(iteration_s: IterationTime, stride: float) -> IterationTime:
    def seconds(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        read = [(max(1, round(new * stride)), round(past * stride)) for new, past in chunks]
        return iteration_s(read, sequences, round(past_tokens * stride))

    return seconds


def pays_up_to(plain: IterationTime, drafting: IterationTime, *, stride: float, past: int, most: int) -> int:
    """The largest number of sequences at which a token takes less time with the draft; 0 where it never does.

    Arguments:
        plain, drafting: seconds of iterations without and with it.
        stride: mean tokens of an iteration with it.
        past: tokens in the cache of each sequence.
        most: sequences at most.
    """
    pays = 0
    for sequences in range(1, most + 1):
        tokens = sequences * past
        if drafting((), sequences, tokens) / stride < plain((), sequences, tokens):
            pays = sequences
    return pays
