"""Prompts that are mixed with decoding but not split, as trtllm-serve has them by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tests.serving_steps import Joining, iteration_s, step_by_step

from gpuwise.serving.continuous import serve
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests

WHOLE = BatchingPolicy(batched_tokens=100, sequences=8, cache_tokens=1 << 20, whole=True)


def whole_prompts(load: Requests, policy: BatchingPolicy) -> Joining:
    """TensorRT-LLM's rule: beside all sequences that decode, prompts in order of arrival, each as a whole, until one does not
    fit into what is left of the tokens or the seats."""

    def joining(now: float, decided: float, waiting: Sequence[int], writes: Mapping[int, int]) -> list[int]:
        room, reads = policy.batched_tokens - len(writes), []
        for i in waiting:
            full = load.input_tokens[i] > room or len(writes) + len(reads) == policy.sequences
            if load.arrival_s[i] > now or full:
                break
            reads.append(i)
            room -= int(load.input_tokens[i])
        return reads

    return joining


@pytest.mark.parametrize("seed", range(4))
def test_whole_prompts_are_served_as_the_rule_written_out_says(seed: int):
    rng = np.random.default_rng(seed)
    load = requests(np.cumsum(rng.exponential(3.0, 60)), rng.integers(10, 90, 60), rng.integers(2, 20, 60))
    served, (first, last) = serve(load, iteration_s, WHOLE), step_by_step(load, whole_prompts(load, WHOLE))
    assert served.first_token_s == pytest.approx(first)
    assert served.end_s == pytest.approx(last)


def test_a_prompt_that_never_fits_beside_others_runs_alone():
    load = requests(np.zeros(3), np.array([40, 100, 10]), np.full(3, 5))
    seen: list[tuple[list[int], int]] = []

    def watched(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        seen.append(([new for new, _ in chunks], sequences))
        return 1.0

    serve(load, watched, WHOLE)
    assert ([100], 0) in seen
    assert [chunk for chunk, _ in seen if chunk] == [[40], [100], [10]]  # in the order in which they came
