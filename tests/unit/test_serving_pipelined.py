"""An instance across machines, against a pipeline that is followed batch by batch."""

from __future__ import annotations

import shlex

import pytest
from tests.unit.test_api_serving import job

from gpuwise.api.serving import serve_plan
from gpuwise.errors import UnsupportedError
from gpuwise.serving.launch_modes import across_machines
from gpuwise.serving.pipelined import Hop, PipelinedStep


class Linear:
    """A model whose layers take a time for the weights, and one for each token."""

    def engine_s(self, users: int) -> float:
        return 1e-4

    def launching_s(self, *, reads: bool) -> float:
        return 0.0

    def head_s(self, rows: int) -> float:
        return 0.0

    def layers_s(self, chunks, sequences: int, past_tokens: int) -> float:
        return 0.01 + 1e-4 * (sequences + sum(new for new, _ in chunks)) + 1e-7 * past_tokens


def tokens_per_s(sequences: int, stages: int, hop: Hop, *, rounds: int = 400) -> float:
    """Batches that wait for each other at every stage, each with its part of the sequences."""
    sizes = [sequences // stages + (i < sequences % stages) for i in range(stages)]
    sizes = [size for size in sizes if size]
    free_s, ready_s, written = [0.0] * stages, [0.0] * len(sizes), 0
    for _ in range(rounds):
        for batch, size in enumerate(sizes):
            at_s = ready_s[batch]
            for stage in range(stages):
                start_s = max(at_s, free_s[stage])
                at_s = start_s + Linear().layers_s((), size, 0) / stages + (1e-4 if stage == 0 else 0.0)
                free_s[stage] = at_s
                at_s += (hop.latency_s + size * hop.token_s) if stage < stages - 1 else 0.0
            ready_s[batch] = at_s
            written += size
    return written / max(ready_s)


@pytest.mark.parametrize(("sequences", "stages"), [(1, 2), (2, 2), (64, 2), (64, 4), (7, 2), (3, 4)])
def test_tokens_a_second_are_those_of_a_pipeline_followed_batch_by_batch(sequences: int, stages: int):
    hop = Hop(2e-5, 1e-6)
    step = PipelinedStep(Linear(), stages, 2048, hop)  # type: ignore[arg-type]
    assert sequences / step((), sequences, 0) == pytest.approx(tokens_per_s(sequences, stages, hop), rel=0.08)


def test_prompts_fill_one_batch_after_the_other():
    step = PipelinedStep(Linear(), 2, 1000, Hop(0.0, 0.0))  # type: ignore[arg-type]
    short, full, two = step([(400, 0)], 0, 0), step([(1000, 0)], 0, 0), step([(600, 0), (900, 0), (500, 0)], 0, 0)
    assert short < full
    assert two == pytest.approx(full)


def test_two_machines_hold_half_of_the_layers_each():
    options = {"rate": "1/s", "input": 200, "output": 50}
    one, two = serve_plan(job(), on="h100-80gb-sxm:2,h100-80gb-sxm:2x2", **options).rows
    one, two = (one, two) if one.mode is None else (two, one)
    assert (two.mode.machines, two.mode.devices, two.mode.layers) == (2, 2, 2)
    assert two.weight_bytes < 0.8 * one.weight_bytes
    assert two.cache_tokens > 1.9 * one.cache_tokens
    assert one.alone_latency_s < two.alone_latency_s < 1.1 * one.alone_latency_s
    words = shlex.split(two.launch)
    assert words[words.index("--tensor-parallel-size") + 1] == words[words.index("--pipeline-parallel-size") + 1] == "2"
    assert words[words.index("--max-num-batched-tokens") + 1] == "8192"  # of each machine
    assert across_machines("trtllm-serve m", machines=2) == ""
    with pytest.raises(UnsupportedError, match=r"4 layers cannot be spread|llama\.cpp across"):
        serve_plan(job(), on="h100-80gb-sxm:2x8", **options)
    with pytest.raises(UnsupportedError, match=r"llama\.cpp across machines"):
        serve_plan(job(), on="h100-80gb-sxm:2x2", engine="llama.cpp", **options)
    assert 1e-6 < two.mode.hop_s < 1e-3
