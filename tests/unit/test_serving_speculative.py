"""Speculative decoding: the law of accepted tokens, a queue that draws each of them, and where it stops paying."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from tests.unit.test_api_serving import job

from gpuwise.api.devices import device_of
from gpuwise.api.drafting import DraftedModel, DraftSettings
from gpuwise.api.served_job import served
from gpuwise.api.serving import serve_plan
from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.serving.arrivals import poisson
from gpuwise.serving.continuous import serve
from gpuwise.serving.engines import engine_of
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch_modes import with_draft
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.serving.speculative import Speculation, SpeculativeInstance, pays_up_to

LOAD = {"rate": "2/s", "input": 200, "output": 100}


def drawn_one_by_one(speculation: Speculation, rng: np.random.Generator) -> int:
    """Tokens of an iteration: each drafted one is accepted or ends it; the model adds one."""
    accepted = 0
    while accepted < speculation.draft_tokens and rng.random() < speculation.acceptance:
        accepted += 1
    return accepted + 1


@pytest.mark.parametrize(("draft_tokens", "acceptance"), [(1, 0.5), (3, 0.7), (5, 0.9), (4, 0.0)])
def test_the_law_of_accepted_tokens(draft_tokens: int, acceptance: float):
    speculation, rng = Speculation(draft_tokens, acceptance), np.random.default_rng(7)
    each = np.array([drawn_one_by_one(speculation, rng) for _ in range(20_000)])
    drawn = speculation.tokens_of(20_000, rng)
    assert speculation.stride == pytest.approx(sum(acceptance**i for i in range(draft_tokens + 1)))
    assert each.mean() == pytest.approx(speculation.stride, rel=0.02)
    assert drawn.mean() == pytest.approx(speculation.stride, rel=0.02)
    for tokens in range(1, draft_tokens + 2):
        assert (drawn == tokens).mean() == pytest.approx((each == tokens).mean(), abs=0.015)


def test_iterations_that_write_an_answer():
    tokens = np.array([0, 1, 5, 100, 1000])
    rng = np.random.default_rng(3)
    assert Speculation(3, 0.0).iterations_of(tokens, rng).tolist() == tokens.tolist()
    speculation = Speculation(3, 0.7)
    many = speculation.iterations_of(np.full(400, 100), rng)
    each = []
    for _ in range(400):
        written = iterations = 0
        while written < 100:
            written, iterations = written + drawn_one_by_one(speculation, rng), iterations + 1
        each.append(iterations)
    assert many.mean() == pytest.approx(np.mean(each), rel=0.01)
    assert many.std() == pytest.approx(np.std(each), rel=0.15)


def test_numbers_out_of_range():
    for draft_tokens, acceptance in ((0, 0.5), (65, 0.5), (3, 1.0), (3, -0.1), (3, float("nan"))):
        with pytest.raises(InputError):
            Speculation(draft_tokens, acceptance)
    with pytest.raises(InputError, match="no default"):
        DraftSettings.of("ngram", draft_tokens=None, acceptance=None)


def linear(chunks, sequences: int, past_tokens: int) -> float:
    """Seconds of an iteration: reading the weights, tokens of prompts, sequences, tokens read from the cache."""
    return 0.01 + 2e-5 * sum(new for new, _ in chunks) + 1e-4 * sequences + 1e-7 * past_tokens


def token_by_token(load, speculation: Speculation, policy: BatchingPolicy, rng: np.random.Generator) -> tuple:
    """First and last tokens where each iteration of each sequence draws what is accepted; no limit of the cache."""
    first, end = np.full(len(load), np.nan), np.full(len(load), np.nan)
    coming, clock = list(range(len(load))), 0.0
    reading: list[list[int]] = []  # request, tokens left to read
    decoding: dict[int, list[int]] = {}  # tokens written, in the cache
    while coming or reading or decoding:
        while coming and load.arrival_s[coming[0]] <= clock and len(reading) + len(decoding) < policy.sequences:
            reading.append([coming[0], int(load.input_tokens[coming.pop(0)])])
        if not reading and not decoding:
            clock = float(load.arrival_s[coming[0]])
            continue
        left, chunks = policy.batched_tokens - len(decoding), []
        for request in reading:
            new = min(left, request[1])
            if new:
                chunks.append((new, int(load.input_tokens[request[0]]) - request[1]))
                request[1] -= new
                left -= new
        clock += linear(chunks, len(decoding), sum(past for _, past in decoding.values()))
        for index, state in list(decoding.items()):
            tokens = drawn_one_by_one(speculation, rng)
            state[0], state[1] = state[0] + tokens, state[1] + tokens
            if state[0] >= load.output_tokens[index]:
                end[index] = clock
                del decoding[index]
        for index, rest in list(reading):
            if rest == 0:
                reading.remove([index, 0])
                first[index] = clock
                if load.output_tokens[index] == 1:
                    end[index] = clock
                else:
                    decoding[index] = [1, int(load.input_tokens[index])]
    return first, end


@pytest.mark.parametrize("rate", [0.5, 8.0])
def test_strides_serve_as_tokens_that_are_drawn_one_by_one(rate: float):
    rng = np.random.default_rng(11)
    load = requests(poisson(rate, count=300, rng=rng), rng.integers(50, 400, 300), rng.integers(20, 200, 300))
    policy = BatchingPolicy(batched_tokens=512, sequences=64, cache_tokens=1 << 20)
    speculation = Speculation(3, 0.7)
    served = SpeculativeInstance(linear, policy, (1, 1), speculation).served(load)
    first, end = token_by_token(load, speculation, policy, rng)
    assert np.mean(served.ttft_s) == pytest.approx(np.mean(first - load.arrival_s), rel=0.03)
    assert np.mean(served.latency_s) == pytest.approx(np.mean(end - load.arrival_s), rel=0.03)
    assert np.percentile(served.tpot_s, 90) == pytest.approx(
        np.percentile((end - first) / (load.output_tokens - 1), 90), rel=0.05
    )


def test_without_accepted_tokens_strides_are_tokens():
    rng = np.random.default_rng(2)
    load = requests(poisson(5.0, count=60, rng=rng), rng.integers(1, 300, 60), rng.integers(1, 80, 60), cached_share=0.3)
    policy = BatchingPolicy(batched_tokens=256, sequences=16, cache_tokens=4000)
    served = SpeculativeInstance(linear, policy, (1, 1), Speculation(4, 0.0)).served(load)
    plain = serve(load, linear, policy)
    np.testing.assert_allclose(served.end_s, plain.end_s)
    np.testing.assert_allclose(served.first_token_s, plain.first_token_s)
    assert Instance(linear, policy, (1, 1)).served(load).iterations == served.iterations


def test_the_batch_up_to_which_a_draft_pays():
    def drafting(chunks, sequences: int, past_tokens: int) -> float:
        return linear(chunks, 4 * sequences, past_tokens) + 0.003

    stride = Speculation(3, 0.7).stride
    # (0.01 + 4e-4 n + 1e-5 n + 0.003) / stride < 0.01 + 1e-4 n + 1e-5 n
    last = (0.01 * stride - 0.013) / (4.1e-4 - 1.1e-4 * stride)
    assert pays_up_to(linear, drafting, stride=stride, past=100, most=500) == int(last)
    assert pays_up_to(linear, drafting, stride=1.0, past=100, most=50) == 0


def test_a_draft_takes_time_and_memory():
    plain = serve_plan("gpt2", on="h100-80gb-sxm", **LOAD).rows[0]
    result = serve_plan("gpt2", on="h100-80gb-sxm", draft="gpt2", acceptance=0.8, draft_tokens=4, **LOAD)
    row = result.rows[0]
    assert row.mode.tokens_an_iteration == pytest.approx((1 - 0.8**5) / 0.2)
    assert row.mode.draft_weight_bytes == row.weight_bytes
    assert row.cache_tokens < 0.51 * plain.cache_tokens  # of each token, both models keep keys and values
    assert row.mode.pays_up_to == 0  # five passes of one model for fewer than five tokens
    assert row.saturation_rate < plain.saturation_rate
    assert not any("0.7" in note for note in result.assumptions)
    words = shlex.split(row.launch)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {"method": "draft_model", "model": "openai-community/gpt2", "num_speculative_tokens": 4}
    assert result.to_dict()["rows"][0]["mode"]["acceptance"] == 0.8
    assert any(note.kind == "drafts-from-version" for note in result.assumption_notes)
    looked_up = serve_plan("gpt2", on="h100-80gb-sxm", draft="ngram", acceptance=0.8, **LOAD).rows[0]
    assert looked_up.mode.pays_up_to > 0
    assert looked_up.alone_latency_s < plain.alone_latency_s


def test_another_vocabulary_is_refused():
    model = DraftedModel(
        DraftSettings.of("gpt2", draft_tokens=None, acceptance=None), served(job()), engine_of("vllm"), "bf16", None, None
    )
    device = device_of("l4", load_catalog())
    with pytest.raises(JobError, match="vocabulary"):
        model.instance(device, model.of(device), LoadShape(Lengths(200, 100)))


def test_a_draft_across_machines_names_the_ways_out():
    settings = DraftSettings.of("ngram", draft_tokens=None, acceptance=0.3)
    model = DraftedModel(settings, served(job()), engine_of("vllm"), "bf16", None, None)
    with pytest.raises(UnsupportedError, match=r"across machines[\s\S]*leave out --draft[\s\S]*devices of one machine"):
        model.check(device_of("h100-sxm:8x2", load_catalog()))


def test_launch_lines_of_drafts():
    looked_up = shlex.split(with_draft("vllm serve m", "vllm", "ngram", 5))
    assert json.loads(looked_up[-1]) == {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 5}
    local = with_draft("llama-server --model big-Q4_K_M.gguf --parallel 4", "llama.cpp", "org/small", 3)
    assert local.endswith("--model-draft small-Q4_K_M.gguf --spec-draft-n-max 3 --spec-draft-p-min 0")
    assert with_draft("trtllm-serve m", "tensorrt-llm", "org/small", 3) == ""
    assert with_draft("", "vllm", "org/small", 3) == ""
