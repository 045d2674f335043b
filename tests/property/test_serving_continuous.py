"""Continuous batching against a scheduler that takes one iteration at a time, and against the laws of queues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.serving.arrivals import poisson
from gpuwise.serving.continuous import serve
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests


def linear(chunks, sequences, past_tokens):
    """Seconds of an iteration: reading the weights, each new token, each token read from the cache."""
    new = sum(n for n, _ in chunks) + sequences
    return 0.01 + 2e-5 * new + 1e-7 * past_tokens + 1e-8 * sum(n * (past + n / 2) for n, past in chunks)


@dataclass
class Running:
    """One request of the scheduler that takes one iteration at a time."""

    index: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    cached: int
    written: int = 0
    to_read: int = 0
    in_cache: int = 0
    blocks: int = 0
    decodes: bool = False


def one_at_a_time(
    load: Requests, iteration_s, policy: BatchingPolicy, clients: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Arrivals, first and last tokens, in seconds, and preemptions; every iteration counts everything anew."""
    block = policy.block_tokens

    def blocks_of(tokens: int) -> int:
        return -(-tokens // block)

    def cached_of(r: Running) -> int:
        return 0 if policy.brought and r.written else r.cached

    def shared_of(r: Running) -> int:
        return 0 if policy.brought else r.cached // block

    columns = (load.arrival_s, load.input_tokens, load.output_tokens, load.cached_tokens)
    coming = [Running(i, *row) for i, row in enumerate(zip(*(column.tolist() for column in columns), strict=True))]
    coming = [r for r in coming if blocks_of(r.input_tokens + r.output_tokens) <= policy.blocks]
    coming, unsent = coming[:clients], coming[clients:] if clients else []
    arrival = load.arrival_s.copy()
    first, end = np.full(len(load), np.nan), np.full(len(load), np.nan)
    waiting: list[Running] = []
    running: list[Running] = []
    clock, preemptions = 0.0, 0
    while coming or waiting or running:
        while coming and coming[0].arrival_s <= clock:
            waiting.append(coming.pop(0))
        if not waiting and not running:
            clock = coming[0].arrival_s
            continue
        preempted = False
        while True:
            decoding = [r for r in running if r.decodes]
            needed = sum(r.in_cache % block == 0 for r in decoding)
            free = policy.blocks - sum(r.blocks for r in running) - needed
            if free >= 0:
                break
            last = running.pop()
            last.blocks, last.decodes = 0, False
            waiting.insert(0, last)
            preemptions, preempted = preemptions + 1, True
        tokens = policy.batched_tokens - len(decoding)
        chunks: list[tuple[Running, int]] = []

        def take(r: Running, new: int) -> int:
            more = blocks_of(r.in_cache + new) - shared_of(r) - r.blocks
            r.blocks += more
            chunks.append((r, new))  # noqa: B023
            return more

        for r in running:
            if not r.decodes:
                room = (r.blocks + shared_of(r) + free) * block - r.in_cache
                new = min(tokens, r.to_read - r.in_cache, room)
                if new > 0:
                    free -= take(r, new)
                    tokens -= new
        while waiting and not preempted and tokens > 0 and len(running) < policy.sequences:
            r = waiting[0]
            new = min(tokens, r.input_tokens + r.written - cached_of(r))
            begun = sum(blocks_of(other.to_read) - shared_of(other) - other.blocks for other in running if not other.decodes)
            if blocks_of(r.input_tokens + r.written) - shared_of(r) > free - begun:  # a prompt begins where all of it has room
                break
            running.append(waiting.pop(0))
            r.to_read, r.in_cache = r.input_tokens + r.written, cached_of(r)
            free -= take(r, new)
            tokens -= new
        clock += iteration_s([(n, r.in_cache) for r, n in chunks], len(decoding), sum(r.in_cache for r in decoding))
        for r in decoding:
            r.blocks += r.in_cache % block == 0
            r.in_cache += 1
            r.written += 1
        for r, new in chunks:
            r.in_cache += new
            if r.in_cache == r.to_read:
                r.decodes = True
                r.written += 1
                if r.written == 1:
                    first[r.index] = clock
        for r in [r for r in running if r.written == r.output_tokens]:
            running.remove(r)
            end[r.index] = clock
            if unsent:
                coming.append(unsent.pop(0))
                coming[-1].arrival_s = arrival[coming[-1].index] = clock
    return arrival, first, end, preemptions


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from([0.5, 5.0, 100.0]),
    batched=st.sampled_from([32, 256, 2048]),
    sequences=st.sampled_from([1, 4, 64]),
    blocks=st.sampled_from([40, 80, 1000]),
    cached_share=st.sampled_from([0.0, 0.4]),
    brought=st.booleans(),
)
def test_many_iterations_at_once_are_those_of_one_at_a_time(seed, rate, batched, sequences, blocks, cached_share, brought):
    rng = np.random.default_rng(seed)
    count = 40
    load = requests(
        poisson(rate, count=count, rng=rng),
        rng.integers(1, 300, count),
        rng.integers(1, 200, count),
        cached_share=cached_share,
    )
    policy = BatchingPolicy(
        batched_tokens=batched, sequences=min(sequences, batched), cache_tokens=blocks * 16, brought=brought
    )
    _, first, end, preemptions = one_at_a_time(load, linear, policy)
    served = serve(load, linear, policy)
    np.testing.assert_allclose(served.first_token_s, first, rtol=1e-9)
    np.testing.assert_allclose(served.end_s, end, rtol=1e-9)
    assert served.preemptions == preemptions


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.sampled_from([1, 3, 16, 100]),
    batched=st.sampled_from([32, 256, 2048]),
    blocks=st.sampled_from([40, 80, 1000]),
)
def test_clients_that_wait_for_their_answers_are_those_of_one_iteration_at_a_time(seed, clients, batched, blocks):
    rng = np.random.default_rng(seed)
    load = requests(np.zeros(40), rng.integers(1, 300, 40), rng.integers(1, 200, 40))
    policy = BatchingPolicy(batched_tokens=batched, sequences=32, cache_tokens=blocks * 16)
    arrival, first, end, preemptions = one_at_a_time(load, linear, policy, clients)
    served = serve(load, linear, policy, concurrency=clients)
    np.testing.assert_allclose(served.requests.arrival_s, arrival, rtol=1e-9)
    np.testing.assert_allclose(served.first_token_s, first, rtol=1e-9)
    np.testing.assert_allclose(served.end_s, end, rtol=1e-9)
    assert served.preemptions == preemptions


@settings(max_examples=20, deadline=None)
@given(
    read=st.sampled_from([900, 3000, 7000]), written=st.sampled_from([20, 500]), batched=st.sampled_from([512, 2048]),
    holds=st.floats(1.2, 8.0), whole=st.booleans(),
)  # fmt: skip
def test_more_clients_never_lower_the_rate_of_a_full_cache(read, written, batched, holds, whole):
    """An engine that began prompts it has no room for would read them in vain, slower than one request after another."""
    count = 200
    load = requests(np.zeros(count), np.full(count, read), np.full(count, written))
    policy = BatchingPolicy(batched, 256, int(holds * (read + written)), whole=whole)
    ends = [serve(load, linear, policy, concurrency=clients).end_s.max() for clients in (1, 2, 4, 8, 16, 64)]
    slowest = np.maximum.accumulate(1 / np.array(ends))
    assert (1 / np.array(ends) >= 0.9 * slowest).all()
