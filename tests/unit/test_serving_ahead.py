"""Batches that are put together while the one before them runs, as vLLM does from 0.14 on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from benchmarks.serving.online import schedules_ahead

from gpuwise.serving.continuous import serve
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests

AHEAD = BatchingPolicy(batched_tokens=1 << 20, sequences=1 << 20, cache_tokens=1 << 30, ahead=True)


def iteration_s(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
    return 1.0 + 0.01 * (sequences + sum(new for new, _ in chunks))


def step_by_step(load: Requests) -> tuple[list[float], list[float]]:
    """Times of first and last tokens: a batch has who came until the batch before it began, or until now where none ran."""
    waiting, writes = list(range(len(load))), dict[int, int]()
    clock = began = 0.0
    first, last = [0.0] * len(load), [0.0] * len(load)
    while waiting or writes:
        decided = began if writes else clock
        reads = [i for i in waiting if load.arrival_s[i] <= decided]
        if not reads and not writes:
            clock = min(load.arrival_s[i] for i in waiting)
            continue
        began = clock
        clock += 1.0 + 0.01 * (len(writes) + sum(int(load.input_tokens[i]) for i in reads))
        for i in list(writes):
            writes[i] -= 1
            if not writes[i]:
                last[i] = clock
                del writes[i]
        for i in reads:
            waiting.remove(i)
            first[i], writes[i] = clock, int(load.output_tokens[i]) - 1
    return first, last


@pytest.mark.parametrize("seed", range(4))
def test_requests_join_the_batch_after_the_next_one(seed: int):
    rng = np.random.default_rng(seed)
    load = requests(np.cumsum(rng.exponential(4.0, 60)), rng.integers(10, 90, 60), rng.integers(2, 20, 60))
    served, (first, last) = serve(load, iteration_s, AHEAD), step_by_step(load)
    assert served.first_token_s == pytest.approx(first)
    assert served.end_s == pytest.approx(last)


def test_versions_of_vllm_that_do():
    assert [schedules_ahead(version) for version in ("0.12.0", "0.14.0", "0.19.0", "1.0.0", "nightly-5b8c30d62b754b57")] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert not schedules_ahead(float("nan"))  # not stated
    assert not schedules_ahead("")
