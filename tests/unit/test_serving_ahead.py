"""Batches that are put together while the one before them runs, as vLLM does from 0.14 on."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.serving.online import schedules_ahead
from tests.serving_steps import Joining, iteration_s, step_by_step

from gpuwise.serving.continuous import serve
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests

AHEAD = BatchingPolicy(batched_tokens=1 << 20, sequences=1 << 20, cache_tokens=1 << 30, ahead=True)


def until_the_batch_before(load: Requests) -> Joining:
    """A batch has who came until the batch before it began, or until now where none ran."""
    return lambda now, decided, waiting, writes: [i for i in waiting if load.arrival_s[i] <= decided]


@pytest.mark.parametrize("seed", range(4))
def test_requests_join_the_batch_after_the_next_one(seed: int):
    rng = np.random.default_rng(seed)
    load = requests(np.cumsum(rng.exponential(4.0, 60)), rng.integers(10, 90, 60), rng.integers(2, 20, 60))
    served, (first, last) = serve(load, iteration_s, AHEAD), step_by_step(load, until_the_batch_before(load))
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
