"""Shared experts beside the routed ones: against the sizes of the model, and against kernels one after the other."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from tests.serving_models import EXPERTS, generation_of

from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.generation import Generation
from gpuwise.serving.shared_experts import shared_and_routed
from gpuwise.serving.sharing import GROUPED
from gpuwise.serving.step_time import EngineStep

LAYERS, WIDTH, SHARED = 3, 256, 96
LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 512,
    "moe_intermediate_size": SHARED,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    @lru_cache
    def of(shared: bool) -> Generation:
        return generation_of(LATENT if shared else EXPERTS, tmp_path_factory.mktemp("config"))

    return of


def step_of(generation: Generation, *, two_streams_tokens: int) -> EngineStep:
    cluster = device_of("h100-80gb-sxm", load_catalog()).cluster
    return EngineStep(generation, cluster, costs=EngineCosts(two_streams_tokens=two_streams_tokens))


@pytest.mark.slow
def test_shared_and_routed_experts_are_those_of_the_model(recorded):
    trace = recorded(True).fused_tokens(8)
    shared, routed = shared_and_routed(trace)
    n, k = (trace.operations.column(name) for name in "nk")
    sizes = [(int(n[row]), int(k[row])) for row in shared.tolist() if n[row]]
    assert sizes == (LAYERS - 1) * [(2 * SHARED, WIDTH), (WIDTH, SHARED)]  # the first block is dense
    names = [trace.operations.name[row] for row in routed.tolist()]
    assert sum(GROUPED in name for name in names) == 2 * (LAYERS - 1)
    routers = [row for row in routed.tolist() if n[row] == LATENT["n_routed_experts"]]
    assert len(routers) == LAYERS - 1
    assert not set(shared.tolist()) & set(routed.tolist())


def test_the_shorter_of_both_is_hidden_up_to_so_many_tokens(recorded):
    after, beside = (step_of(recorded(True), two_streams_tokens=tokens) for tokens in (0, 256))
    trace, kernels = recorded(True).fused_tokens(8), after._kernels
    shared, _ = shared_and_routed(trace)
    sequence = trace.sequence
    alone = {"weight_bytes": 0, "tokens": 8, "operations": 0}
    without = np.setdiff1d(np.arange(len(trace.operations)), shared)
    rest = type(trace)(
        trace.header,
        trace.operations.take(without),
        type(sequence)(
            *(getattr(sequence, name)[: len(without)] for name in ("operation", "module", "phase", "micro_step", "stream"))
        ),
        trace.storages,
        trace.modules,
    )
    shared_s = kernels.pass_s(trace, **alone) - kernels.pass_s(rest, **alone)
    assert after((), 8, 800) - beside((), 8, 800) == pytest.approx(shared_s, rel=1e-9)
    assert after([(512, 0)], 0, 0) == beside([(512, 0)], 0, 0)


def test_models_without_shared_experts_take_as_long(recorded):
    after, beside = (step_of(recorded(False), two_streams_tokens=tokens) for tokens in (0, 256))
    assert after((), 8, 800) == beside((), 8, 800)


def test_engines_that_have_two_streams():
    """vLLM (SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD), SGLang (DUAL_STREAM_TOKEN_THRESHOLD), TensorRT-LLM's captured graphs."""
    tokens = {
        name: engine_of(name).costs.two_streams_tokens for name in ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "vllm-2023")
    }
    assert tokens == {"vllm": 256, "sglang": 1024, "tensorrt-llm": 128, "llama.cpp": 0, "vllm-2023": 0}
