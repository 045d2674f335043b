"""Prompts that are mixed with decoding but not split, as trtllm-serve has them by default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpuwise.serving.continuous import serve
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests

WHOLE = BatchingPolicy(batched_tokens=100, sequences=8, cache_tokens=1 << 20, whole=True)


def iteration_s(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
    return 1.0 + 0.01 * (sequences + sum(new for new, _ in chunks))


def step_by_step(load: Requests, policy: BatchingPolicy) -> tuple[list[float], list[float]]:
    """Times of first and last tokens, by TensorRT-LLM's rule written out: each iteration has all sequences that decode, and
    then prompts in order of arrival, each as a whole, until one does not fit into what is left of the tokens or the seats."""
    waiting, writes = list(range(len(load))), dict[int, int]()
    clock, first, last = 0.0, [0.0] * len(load), [0.0] * len(load)
    while waiting or writes:
        arrived = [i for i in waiting if load.arrival_s[i] <= clock]
        if not arrived and not writes:
            clock = min(load.arrival_s[i] for i in waiting)
            continue
        room, reads = policy.batched_tokens - len(writes), []
        for i in arrived:
            if load.input_tokens[i] > room or len(writes) + len(reads) == policy.sequences:
                break
            reads.append(i)
            room -= int(load.input_tokens[i])
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
def test_whole_prompts_are_served_as_the_rule_written_out_says(seed: int):
    rng = np.random.default_rng(seed)
    load = requests(np.cumsum(rng.exponential(3.0, 60)), rng.integers(10, 90, 60), rng.integers(2, 20, 60))
    served, (first, last) = serve(load, iteration_s, WHOLE), step_by_step(load, WHOLE)
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
