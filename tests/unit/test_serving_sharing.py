"""Devices that share a model: against the model recorded on a mesh, against chance, and against published sums."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from tests.serving_models import EXPERTS, SIZES, generation_of

from gpuwise.api.devices import device_of
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.serving.continuous import serve
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.generation import Generation
from gpuwise.serving.low_latency import low_latency_s
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.serving.sharing import Degrees, distinct_experts
from gpuwise.serving.step_time import EngineStep
from gpuwise.trace.header import RankGroup
from gpuwise.trace.tables import KINDS
from gpuwise.trace.trace import Trace

CONFIGS = {
    "dense": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": 512,
        "max_position_embeddings": 512,
        **SIZES,
    },
    "experts": EXPERTS,
    "linear attention": {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 512,
        **SIZES,
        "num_hidden_layers": 4,
    },
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    @lru_cache
    def of(name: str, tp: int = 1) -> Generation:
        return generation_of(CONFIGS[name], tmp_path_factory.mktemp("config"), tp=tp)

    return of


def products(trace: Trace) -> list[tuple[int, ...]]:
    """Rows, columns and depth of the plain products, sorted."""
    rows = np.flatnonzero((trace.operations.kind == KINDS.index("gemm")) & (trace.operations.column("batch") <= 1))
    return sorted(tuple(int(trace.operations.column(name)[row]) for name in "mnk") for row in rows)


def grouped(trace: Trace) -> list[tuple[int, ...]]:
    """Products of experts: how many, their rows, columns and depth."""
    rows = [row for row, name in enumerate(trace.operations.name) if "_grouped_mm" in name]
    return [tuple(int(trace.operations.column(name)[row]) for name in ("batch", "m", "n", "k")) for row in rows]


def test_a_shared_model_runs_the_products_of_the_one_recorded_on_a_mesh(recorded):
    whole, on_mesh = recorded("dense"), recorded("dense", tp=2)
    shared = whole.shared(Degrees(tp=2))
    for tokens in (1, 48):
        ours, theirs = shared.fused_tokens(tokens), on_mesh.fused_tokens(tokens)
        assert products(ours) == products(theirs)
        reduced = theirs.operations.is_collective
        assert sum(each.calls for each in shared.exchanges(tokens)) == reduced[theirs.sequence.operation].sum()
        assert {each.payload_bytes for each in shared.exchanges(tokens)} <= set(
            theirs.operations.payload_bytes[reduced].tolist()
        )
    (gathered,) = shared.head_exchanges(5)  # a mesh leaves the logits in parts
    assert gathered.payload_bytes == 2 * 5 * SIZES["vocab_size"]
    assert whole.exchanges(5) == whole.head_exchanges(5) == ()
    assert shared.cache_bytes_per_token == on_mesh.cache_bytes_per_token
    assert [(each.heads, each.key_bytes) for each in shared.attention] == [
        (each.heads, each.key_bytes) for each in on_mesh.attention
    ]


def test_queries_keys_and_values_are_one_product(recorded):
    heads = 8 + 2 * 4
    assert (48, heads * 32, 256) in products(recorded("dense").fused_tokens(48))
    assert (48, 2 * 512, 256) in products(recorded("dense").fused_tokens(48))


def test_experts_that_no_token_chooses_are_not_read():
    rng = np.random.default_rng(0)
    for experts, chosen, tokens in ((8, 2, 1), (16, 2, 5), (128, 8, 30)):
        drawn = [
            len({int(each) for _ in range(tokens) for each in rng.choice(experts, chosen, replace=False)}) for _ in range(2_000)
        ]
        assert distinct_experts(experts, chosen, tokens) == pytest.approx(np.mean(drawn), rel=0.01)
    assert distinct_experts(8, 2, 1e9) == pytest.approx(8)


def test_devices_share_experts(recorded):
    whole = recorded("experts")
    # One token: two experts of 16, gate and up together; each has one row.
    assert grouped(whole.fused_tokens(1)) == 2 * [(2, 1, 2 * 128, 256), (2, 1, 256, 128)]
    assert grouped(whole.shared(Degrees(2, 2)).fused_tokens(1)) == 2 * [(2, 1, 128, 256), (2, 1, 256, 64)]
    # Very many tokens: all experts, on each device half of them, or all of half the size.
    assert grouped(whole.shared(Degrees(2, 1, 2)).fused_tokens(4096))[0] == (8, 512, 256, 256)
    assert grouped(whole.shared(Degrees(2, 2, 1)).fused_tokens(4096))[0] == (16, 512, 128, 256)
    # Two replicas of attention: what a device runs of its own tokens is whole, its experts have rows of both.
    replicas = whole.shared(Degrees(1, 1, 2, 2))
    assert grouped(replicas.fused_tokens(2048))[0] == (8, 512, 256, 256)
    assert products(replicas.fused_tokens(8)) == products(whole.fused_tokens(8))
    assert [each.operation for each in replicas.exchanges(8)] == ["all_gather", "reduce_scatter"]


def test_weights_of_devices_add_up(recorded):
    whole = recorded("experts")
    experts = sum(each.bytes for each in whole.weights if "experts." in each.name)
    assert experts == 2 * 16 * 3 * 128 * 256 * 2
    for degrees in (Degrees(4, 4, 1), Degrees(4, 1, 4), Degrees(4, 2, 2)):
        assert 4 * sum(each.bytes for each in whole.shared(degrees).weights if "experts." in each.name) == experts


def test_linear_attention_keeps_one_state_a_sequence(recorded):
    generation = recorded("linear attention")
    state = 3 * 4 * 16 * 32 * 4  # three of four layers, heads, key size, value size, fp32
    window = 3 * (2 * 2 * 16 + 4 * 32) * 2  # of the convolution: channels, bf16, some tokens of each
    assert state < generation.cache_bytes_per_sequence <= state + 4 * window
    assert sum(each.layers for each in generation.attention) == 1
    names = generation.tokens.operations.name
    assert not any("bmm" in name or "baddbmm" in name for name in names)
    shared = generation.shared(Degrees(2, 2))
    assert shared.cache_bytes_per_sequence == generation.cache_bytes_per_sequence // 2


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_states_that_do_not_grow_take_room_beside_the_cache(recorded, engine: str):
    """As many requests of the usual length as fit, each with its state; counting tokens alone would let in far more."""
    generation, usual, capacity = recorded("linear attention"), 100, 8 * 10**9
    engine_ = engine_of(engine)
    policy = engine_.policy(generation, capacity_bytes=capacity, outside_bytes=0, longest=usual)
    logits = min(policy.sequences, engine_.logits or policy.sequences)
    beside = engine_.beside_bytes(generation, outside_bytes=0, logits=logits)
    free = int(engine_.memory_share * capacity) - generation.weight_bytes - beside
    requests = policy.cache_tokens / usual
    assert requests * generation.cache_bytes(usual) == pytest.approx(free, rel=0.01)
    assert policy.cache_tokens * generation.cache_bytes_per_token < 0.7 * free


# sgl-project/sglang#2904: microseconds of sums on 2, 4 and 8 H100, by bytes.
PUBLISHED = {
    512: (3.7, 4.8, 5.9),
    4096: (3.9, 3.7, 5.7),
    32768: (4.5, 4.8, 7.8),
    262144: (7.9, 13.9, 16.7),
    524288: (12.5, 20.2, 22.1),
    1048576: (19.9, 31.1, 33.8),
}


def test_small_sums_take_what_was_published():
    cluster = device_of("h100-80gb-sxm:8", load_catalog()).cluster
    ratios = []
    for size, microseconds in PUBLISHED.items():
        for ranks, measured in zip((2, 4, 8), microseconds, strict=True):
            seconds = low_latency_s("all_reduce", size, RankGroup("tp", ranks, 1), cluster)
            assert seconds is not None
            ratios.append(seconds * 1e6 / measured)
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.12
    assert max(ratios) < 1.4
    assert min(ratios) > 0.7
    over_pcie = device_of("rtx-4090:2", load_catalog()).cluster
    assert low_latency_s("all_reduce", 512, RankGroup("tp", 2, 1), over_pcie) is None


def test_the_host_bounds_passes_that_no_graph_captured(recorded):
    cluster = device_of("h100-80gb-sxm", load_catalog()).cluster
    generation = recorded("dense")
    plain, launched = (EngineStep(generation, cluster, costs=costs) for costs in (EngineCosts(), EngineCosts(launch_s=1.0)))
    assert launched([(64, 0)], 0, 0) > 10  # seconds: more than ten kernels
    assert launched((), 4, 400) == plain((), 4, 400)
    eager = EngineStep(generation, cluster, costs=EngineCosts(decoding_launch_s=1.0))
    assert eager((), 4, 400) > 10


def test_the_host_works_on_each_token_of_a_prompt_while_the_device_waits(recorded):
    cluster, generation = device_of("h100-80gb-sxm", load_catalog()).cluster, recorded("dense")
    plain, slow = (EngineStep(generation, cluster, costs=EngineCosts(prompt_token_s=s)) for s in (0.0, 1e-3))
    host = EngineStep(generation, cluster, costs=EngineCosts(launch_s=1.0))
    host_factor = host.launching_s(reads=True) / host._launches  # of this card's host over the reference's
    more = slow([(64, 0), (36, 10)], 4, 400) - plain([(64, 0), (36, 10)], 4, 400)
    assert more == pytest.approx(100 * 1e-3 * host_factor)
    assert slow((), 4, 400) == plain((), 4, 400)


def test_engines_without_sums_of_their_own_have_those_of_the_library(recorded):
    cluster = device_of("h100-80gb-sxm:8", load_catalog()).cluster
    generation = recorded("dense").shared(Degrees(2, 2))
    own, library = (EngineStep(generation, cluster, costs=EngineCosts(own_sums=own)) for own in (True, False))
    each = generation.exchanges(1)
    calls = {
        "payload_bytes": each[0].payload_bytes,
        "group": each[0].group,
        "cluster": cluster,
        "parameters": parameters(),
    }
    expected = sum(exchange.calls for exchange in each) * collective_time("all_reduce", **calls).seconds
    assert library._kernels.exchanges_s(each) == pytest.approx(expected)
    assert own._kernels.exchanges_s(each) < expected
    assert own.with_costs(EngineCosts(own_sums=False))((), 1, 10) == library((), 1, 10)


def test_requests_reach_the_queue_some_time_after_they_arrive():
    load = requests(np.zeros(2), np.full(2, 10), np.full(2, 3))
    policy = BatchingPolicy(batched_tokens=100, sequences=1, cache_tokens=1000, request_s=0.5)
    served = serve(load, lambda chunks, sequences, past: 1.0, policy, concurrency=1)
    np.testing.assert_allclose(served.ttft_s, 1.5)
    np.testing.assert_allclose(served.end_s, [3.5, 7.0])


def test_linear_attention_is_launched_in_parts_where_prompts_are_read(recorded):
    cluster = device_of("h100-80gb-sxm", load_catalog()).cluster
    generation = recorded("linear attention")
    assert (generation.linear_layers, recorded("dense").linear_layers) == (3, 0)
    plain, launched = (EngineStep(generation, cluster, costs=EngineCosts(linear_layer_s=s)) for s in (0.0, 10.0))
    host = launched.launching_s(reads=True) / (3 * 10.0)  # seconds of this card's host over the reference's
    assert 0.5 < host < 1.5
    assert launched([(64, 0)], 0, 0) == pytest.approx(30.0 * host)
    assert launched((), 4, 400) == plain((), 4, 400)
    assert EngineStep(recorded("dense"), cluster, costs=EngineCosts(linear_layer_s=10.0))([(64, 0)], 0, 0) < 1
