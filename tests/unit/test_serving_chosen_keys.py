"""Attention to keys that an indexer chooses: what a recording shows of it, and its counts against brute force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.job.hf import hf_job
from gpuwise.serving.attention_layers import AttentionLayers
from gpuwise.serving.chosen_keys import ChosenKeys, Indexer, choosing_shapes, scoring_shapes, seen_tokens
from gpuwise.serving.generation import Generation
from gpuwise.serving.kernels import attention_shapes
from gpuwise.serving.sharing import Degrees
from gpuwise.serving.step_time import EngineStep
from gpuwise.tracing.generation import record_generation

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 24,
    "index_topk": 64,
    "max_position_embeddings": 4096,
}
GLM = {"architectures": ["GlmMoeDsaForCausalLM"], "mlp_layer_types": ["dense"] * 3, "indexer_types": ["full", "shared", "full"]}
DEEPSEEK = {"architectures": ["DeepseekV32ForCausalLM"], "first_k_dense_replace": 3}
KEYS = (32 + 8) * 2  # bytes of a latent key and its rotary part


def recorded(config: dict[str, object], folder: Path) -> Generation:
    (folder / "config.json").write_text(json.dumps(SIZES | config), encoding="utf-8")
    job = hf_job(str(folder), seq_len=64)
    return record_generation(job, longest=job.context_length)


@pytest.mark.parametrize(
    ("config", "own"),
    [
        pytest.param({**GLM, "model_type": "glm_moe_dsa"}, 2, marks=pytest.mark.slow),
        ({**DEEPSEEK, "model_type": "deepseek_v32"}, 3),
    ],
    ids=["glm_moe_dsa", "deepseek_v32"],
)
def test_a_recording_shows_how_many_keys_are_chosen_and_by_what(config, own, tmp_path):
    generation = recorded(config, tmp_path)
    layers = [layer for layer in generation.attention for _ in range(layer.layers)]
    assert [layer.chosen.most for layer in layers if layer.chosen] == [64] * 3
    indexers = [layer.chosen.indexer for layer in layers if layer.chosen and layer.chosen.indexer]
    assert indexers == [Indexer(heads=2, size=24)] * own
    assert {layer.key_bytes for layer in layers} == {KEYS}
    assert generation.cache_bytes_per_token == 3 * KEYS + own * 24 * 2
    shared = generation.shared(Degrees(2, 2))  # each device has the whole latent key, and the whole indexer
    assert [layer.chosen for layer in shared.attention] == [layer.chosen for layer in generation.attention]


def test_models_that_see_all_keys_choose_none(tmp_path):
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "first_k_dense_replace": 3}
    assert all(layer.chosen is None for layer in recorded(config, tmp_path).attention)


LAYER = AttentionLayers(1, 4, 24, 4 * 24 * 4, KEYS, None, "bfloat16", ChosenKeys(64, Indexer(2, 24)))


@pytest.mark.parametrize(("new", "past"), [(1, 10), (1, 500), (40, 0), (200, 0), (30, 50), (100, 300)])
def test_counts_are_those_of_the_masks(new, past):
    """Brute force: what each query scores and sees, from the mask that its top-k makes."""
    positions = torch.arange(past, past + new)[:, None]
    causal = torch.arange(past + new)[None] <= positions
    scores = torch.rand((new, past + new), generator=torch.Generator().manual_seed(0)).masked_fill(~causal, -torch.inf)
    best = scores.topk(min(64, past + new)).indices
    seen = torch.zeros_like(causal).scatter(1, best, True) & causal
    assert seen_tokens(new, past, 64).tolist() == seen.sum(1).tolist()
    scoring = scoring_shapes(Indexer(2, 24), sequences=3, new=new, past=past, element_bytes=1.0)
    assert scoring.flops[0] == 3 * 2 * 2 * 24 * causal.sum()
    assert scoring.bytes_written[0] == 3 * 4 * causal.sum()
    chosen = choosing_shapes(ChosenKeys(64, None), sequences=3, new=new, past=past)
    assert (chosen.bytes_read[0], chosen.bytes_written[0]) == (3 * 4 * causal.sum(), 3 * 4 * seen.sum())
    shapes, every = (attention_shapes(layer, sequences=3, new=new, past=past) for layer in (LAYER, replace(LAYER, chosen=None)))
    if past + new <= 64:
        assert vars(shapes) == vars(every)
        return
    read = 3 * seen.sum() * KEYS + 3 * new * LAYER.query_bytes / 2  # each query reads keys of its own
    assert shapes.bytes_read[0] == pytest.approx(float(read), rel=0.01)
    assert shapes.flops[0] == pytest.approx(float(4 * 3 * 4 * 24 * seen.sum()), rel=0.01)


def test_a_decoding_step_reads_no_more_than_the_chosen_keys(tmp_path):
    generation = recorded({**GLM, "model_type": "glm_moe_dsa"}, tmp_path)
    cluster = device_of("h100-80gb-sxm", load_catalog()).cluster
    step = EngineStep(generation, cluster)
    layers = tuple(
        replace(layer, chosen=layer.chosen and replace(layer.chosen, indexer=None)) for layer in generation.attention
    )
    alone, every = (
        EngineStep(replace(generation, attention=part), cluster)
        for part in (layers, tuple(replace(layer, chosen=None) for layer in layers))
    )
    near, far = (np.array([each((), 256, 256 * past) for each in (step, alone, every)]) for past in (128, 4000))
    assert far[1] == near[1]  # as many keys, wherever they are
    assert far[2] > near[2]
    assert far[0] > near[0] > near[1]  # scores grow with the text
