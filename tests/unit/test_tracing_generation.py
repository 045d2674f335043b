"""Recorded generation against plain PyTorch: bytes of weights and caches of real models, and what each token takes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.quick import quick

import gpuwise.tracing.generation as recording
from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.hf import hf_job
from gpuwise.job.models.generation import generate
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.serving.engines import engines
from gpuwise.serving.experts import ExpertShape, expert_shape
from gpuwise.serving.generation import Generation, fused
from gpuwise.serving.sharing import GROUPED
from gpuwise.tracing.generation import record_generation

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
}
MLA = {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
STATES = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256, "state_size": 16}
# Multi-head, grouped, one key head, windowed, some layers windowed, latent, experts, hybrids of linear attention and of state
# space models, no attention.
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {**SIZES, "architectures": ["LlamaForCausalLM"]},
    "opt": {**SIZES, "architectures": ["OPTForCausalLM"], "ffn_dim": 128, "word_embed_proj_dim": 64},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 1024,
        "vocab_size": 256,
    },
    "qwen2": {**SIZES, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**SIZES, "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "falcon": {**SIZES, "architectures": ["FalconForCausalLM"], "multi_query": True, "alibi": False},
    "mistral": {**SIZES, "architectures": ["MistralForCausalLM"], "sliding_window": 64},
    "gemma2": {**SIZES, "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "sliding_window": 64},
    "mixtral": {**SIZES, "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **SIZES,
        **MLA,
        **EXPERTS,
        "architectures": ["DeepseekV3ForCausalLM"],
        "v_head_dim": 16,
        "n_group": 2,
        "topk_group": 1,
    },
    "qwen3_next": {
        **SIZES,
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "kimi_linear": {
        **SIZES,
        **MLA,
        "architectures": ["KimiLinearForCausalLM"],
        "v_head_dim": 16,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 32,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "head_dim": 16,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "jamba": {
        **SIZES,
        "architectures": ["JambaForCausalLM"],
        "num_experts": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 4,
    },
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {**SIZES, "head_dim": 16, "sliding_window": 64, "model_type": "gemma3_text"},
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
            "model_type": "siglip_vision_model",
        },
        "mm_tokens_per_image": 4,
    },
    "mamba": {**STATES, "architectures": ["MambaForCausalLM"], "time_step_rank": 4},
    "mamba2": {
        **STATES,
        "architectures": ["Mamba2ForCausalLM"],
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 1,
    },
}


def job_of(folder: Path, name: str) -> Job:
    (folder / "config.json").write_text(json.dumps({**ARCHITECTURES[name], "model_type": name}), encoding="utf-8")
    return hf_job(str(folder), seq_len=64)


def real_bytes(job: Job, *, sequences: int, tokens: int) -> tuple[int, int]:
    """Bytes of the weights and of the cache of the real model in bf16, after it has read these tokens."""
    torch.manual_seed(0)
    model = job.model().to(torch.bfloat16).eval()
    with torch.no_grad():
        _, cache = job.generate(model, torch.randint(0, 256, (sequences, tokens)), None)
    weights = {t.untyped_storage().data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()]}
    sizes_bytes: dict[int, int] = {}
    for layer in cache.layers:
        for value in vars(layer).values():
            for tensor in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                if isinstance(tensor, torch.Tensor):
                    sizes_bytes[id(tensor)] = tensor.nbytes
    return sum(weights.values()), sum(sizes_bytes.values())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bytes_are_those_of_the_real_model(name: str, tmp_path: Path):
    job = job_of(tmp_path, name)
    generation = record_generation(job, longest=job.context_length)
    for sequences, tokens in ((1, 40), (3, 200)):
        weights, cache = real_bytes(job, sequences=sequences, tokens=tokens)
        assert generation.weight_bytes == pytest.approx(weights, rel=1e-3)
        # A window's count of tokens, a number of eight bytes a layer, is the model's and not a sequence's.
        assert sequences * generation.cache_bytes(tokens) == pytest.approx(cache, rel=1e-3, abs=64)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_scan_is_one_kernel_that_keeps_states_to_itself(name: str, tmp_path: Path):
    """In Transformers' own code a layer of Mamba runs over a hundred operations for 64 tokens, or writes a state for each."""
    trace = record_generation(job_of(tmp_path, name)).tokens.at(micro_batch=1, new_tokens=512)
    assert len(trace.sequence) < 40 * STATES["num_hidden_layers"]
    state_bytes = 2 * STATES["hidden_size"] * STATES["state_size"] * 2  # inner width, state of each, in bf16
    for name in ("bytes_read", "bytes_written"):
        assert trace.operations.column(name).max() < 512 * state_bytes


def tiny(**changes: int) -> Job:
    config = LlamaConfig(**{"vocabulary": 512, "width": 64, "layers": 3, "heads": 4, "kv_heads": 2, "hidden": 96, **changes})
    return Job(
        lambda: Llama(config),
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        generate=generate,
        name="tiny",
    )


def test_products_of_a_token_are_those_of_the_weights():
    """Counted by hand: two operations a weight and token, but for the head's, which runs once a sequence."""
    generation = record_generation(tiny())
    width, heads, kv, hidden, layers = 64, 64, 32, 96, 3
    per_token = 2 * layers * (width * (heads + 2 * kv) + heads * width + 3 * width * hidden)
    for tokens in (1, 7, 300):
        trace = generation.tokens.at(micro_batch=1, new_tokens=tokens)
        assert trace.counts() @ trace.operations.column("flops") == tokens * per_token
    head = generation.head.at(micro_batch=5, new_tokens=1)
    assert head.counts() @ head.operations.column("flops") == 5 * 2 * width * 512
    assert generation.vocabulary == 512
    assert [(x.layers, x.heads, x.head_size, x.key_bytes, x.window) for x in generation.attention] == [
        (3, 4, 16, 2 * kv * 2, None)
    ]


def test_keys_and_values_that_one_product_makes_count_each():
    config = Gpt2Config(vocabulary=64, positions=64, width=32, layers=2, heads=4)
    job = Job(
        lambda: Gpt2(config),
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        generate=generate,
        context_length=64,
    )
    generation = record_generation(job, longest=64)
    assert generation.cache_bytes_per_token == 2 * 2 * 32 * 2  # layers, keys and values, width, bytes
    assert sum(each.layers * each.key_bytes for each in generation.attention) == generation.cache_bytes_per_token


def test_engines_run_queries_keys_and_values_as_one_product():
    generation = record_generation(tiny())
    trace = fused(generation.tokens.at(micro_batch=1, new_tokens=16))
    products = [i for i, name in enumerate(trace.operations.name) if "mm" in name]
    plain = generation.tokens.at(micro_batch=1, new_tokens=16)
    assert len(products) == 3 * 5
    assert trace.operations.column("n")[products[0]] == 64 + 2 * 32
    assert trace.operations.column("flops").sum() == plain.counts() @ plain.operations.column("flops")
    # The input of the joined product is read once, its weights and results in full.
    assert trace.operations.column("bytes_read")[products[0]] == 2 * (16 * 64 + 64 * 128)
    # A norm with the addition before it, rotary positions, an activation: one kernel between two products.
    assert all(b - a <= 2 for a, b in pairwise(products))


def test_few_blocks_show_all():
    """A model of many layers is recorded with few of them: as with all."""
    few = record_generation(tiny(layers=12))
    weights = Llama(LlamaConfig(vocabulary=512, width=64, layers=12, heads=4, kv_heads=2, hidden=96)).to(torch.bfloat16)
    assert few.weight_bytes == sum(p.nbytes for p in weights.parameters())
    assert few.attention[0].layers == 12
    trace = few.tokens.at(micro_batch=1, new_tokens=2)
    assert np.isclose(trace.counts() @ trace.operations.column("flops"), 12 / 3 * _flops(tiny(), 2))


@pytest.mark.parametrize("tp", quick([1, 2], slow=[2]))
def test_few_blocks_are_recorded_where_layers_are_shared_too(monkeypatch, tp):
    recorded, layers = recording._recorded, []

    def counted(job, *arguments, **options):
        layers.append(len(job.model().layers))
        return recorded(job, *arguments, **options)

    monkeypatch.setattr(recording, "_recorded", counted)
    few = record_generation(tiny(layers=12), tp=tp)
    assert max(layers) < 12
    monkeypatch.setattr(recording, "_repeated", lambda *arguments: None)
    whole = record_generation(tiny(layers=12), tp=tp)
    assert layers[-1] == 12
    check_equal(few, whole)


def check_equal(few: Generation, whole: Generation) -> None:
    for name in ("attention", "weights", "cache_bytes_per_token", "cache_bytes_per_sequence", "activation_bytes_per_token"):
        assert getattr(few, name) == getattr(whole, name)
    for tokens in (1, 5, 512):
        a, b = (each.tokens.at(micro_batch=1, new_tokens=tokens) for each in (few, whole))
        assert [a.operations.name[row] for row in a.sequence.operation] == [
            b.operations.name[row] for row in b.sequence.operation
        ]
        assert np.array_equal(a.operations.values[a.sequence.operation], b.operations.values[b.sequence.operation])


@pytest.mark.parametrize(
    ("name", "layers"),
    quick(
        [("qwen3", 8), ("mixtral", 8), ("mamba", 8), ("gemma2", 12), ("qwen3_next", 24), ("deepseek_v3", 14)],
        slow=[("qwen3", 8), ("gemma2", 12), ("qwen3_next", 24)],
    ),
)
def test_few_blocks_of_models_of_transformers_show_all(name: str, layers: int, monkeypatch, tmp_path: Path):
    """Their masks read a value, which has the same answer on the `meta` device as in a recording."""
    monkeypatch.setitem(ARCHITECTURES[name], "num_hidden_layers", layers)
    job, repeated = job_of(tmp_path, name), recording._repeated
    shown: list[bool] = []

    def counted(*arguments):
        result = repeated(*arguments)
        shown.append(result is not None)
        return result

    monkeypatch.setattr(recording, "_repeated", counted)
    few = record_generation(job)
    assert shown == [True]
    monkeypatch.setattr(recording, "_repeated", lambda *arguments: None)
    check_equal(few, record_generation(job))


@pytest.mark.parametrize("layers", quick([3, 12], slow=[12]))
def test_a_recording_in_bf16_shows_that_in_fp16(layers: int):
    shown, recorded = record_generation(tiny(layers=layers)).in_fp16(), record_generation(tiny(layers=layers), precision="fp16")
    assert shown.attention == recorded.attention
    assert shown.weights == recorded.weights
    for a, b in ((shown.tokens, recorded.tokens), (shown.head, recorded.head)):
        assert a.header == b.header
        assert (a.operations.name, a.operations.dtype) == (b.operations.name, b.operations.dtype)
        assert np.array_equal(a.operations.values, b.operations.values)


def _flops(job: Job, tokens: int) -> float:
    trace = record_generation(job).tokens.at(micro_batch=1, new_tokens=tokens)
    return float(trace.counts() @ trace.operations.column("flops"))


def test_devices_that_share_layers_have_their_part():
    whole, half = record_generation(tiny()), record_generation(tiny(), tp=2)
    assert half.cache_bytes_per_token * 2 == whole.cache_bytes_per_token
    assert half.attention[0].heads * 2 == whole.attention[0].heads
    trace = half.tokens.at(micro_batch=1, new_tokens=4)
    reduced = trace.operations.is_collective[trace.sequence.operation].sum()
    assert reduced == 2 * 3 + 1  # after attention and after the perceptron of each layer; the embedding's


@pytest.mark.parametrize(("precision", "target", "element_bytes"), [("bf16", "accelerator", 2), ("fp32", "cpu", 4)])
def test_a_mixture_reads_the_experts_that_tokens_choose(precision: str, target: str, element_bytes: int):
    """One token reads 2 of 8 experts, and as many tokens as one likes read each once; counted by hand."""
    width, hidden, layers, experts = 64, 96, 3, 8
    config = MixtralConfig(vocabulary=512, width=width, layers=layers, heads=4, kv_heads=2, hidden=hidden)
    job = Job(
        lambda: Mixtral(config),
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        generate=generate,
        name="mixture",
    )
    generation = record_generation(job, precision=precision, target=target)
    assert expert_shape(generation) == ExpertShape(layers, experts, 2)
    assert generation.weight_bytes == element_bytes * sum(p.numel() for p in Mixtral(config).parameters())
    for tokens, read in ((1, 2), (10_000, 8)):
        operations = generation.fused_tokens(tokens).operations
        products = np.flatnonzero([GROUPED in name for name in operations.name])
        assert len(products) == 2 * layers
        weights = operations.column("batch")[products] * operations.column("n")[products] * operations.column("k")[products]
        assert weights.sum() == layers * read * 3 * width * hidden
        assert operations.column("flops")[products].sum() == 2 * tokens * 2 * layers * 3 * width * hidden


def test_a_model_without_a_cache_cannot_generate():
    with pytest.raises(JobError, match="cannot generate"):
        record_generation(
            Job(lambda: torch.nn.Linear(2, 2), lambda n: torch.zeros(n, 2), lambda m, b: m(b).sum(), name="linear")
        )


def test_what_reads_its_whole_text_for_each_token_is_no_cache():
    def reread(model: torch.nn.Module, tokens: torch.Tensor, before: object) -> tuple[torch.Tensor, object]:
        whole = tokens if before is None else torch.cat([before, tokens], 1)
        return model(whole)[:, -1], whole

    job = tiny()
    with pytest.raises(JobError, match="runs the model over the tokens before again"):
        record_generation(Job(job.model, job.batch, job.loss, generate=reread, name="tiny"))


def test_a_loop_over_tokens_is_refused_with_the_way_out():
    def one_by_one(model: torch.nn.Module, tokens: torch.Tensor, state: object) -> tuple[torch.Tensor, object]:
        for number in range(tokens.shape[1]):
            state = model(torch.nn.functional.one_hot(tokens[:, number], 16).to(torch.bfloat16), state)
        return state, state  # type: ignore[return-value]

    job = Job(
        lambda: torch.nn.GRUCell(16, 16),
        lambda n: torch.zeros(n, 16),
        lambda model, batch: model(batch)[0].mean(),
        generate=one_by_one,
        name="loop",
    )
    with pytest.raises(JobError, match=r"as loops over tokens do[\s\S]*gpuwise forecast JOB --mode infer"):
        record_generation(job)


class MaskedAttention(torch.nn.Module):
    """One layer whose attention takes a mask beside enable_gqa, which no fused kernel of PyTorch's takes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.query = torch.nn.Embedding(64, 128), torch.nn.Linear(128, 128)
        self.key_value = torch.nn.Linear(128, 2 * 16)

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens)
        new = self.key_value(x).unflatten(2, (2, 1, 16)).permute(2, 0, 3, 1, 4)
        cache = new if cache is None else torch.cat([cache, new], 3)
        mask = torch.ones(x.shape[1], cache.shape[3], dtype=torch.bool, device=x.device).tril(cache.shape[3] - x.shape[1])
        query = self.query(x).unflatten(2, (8, 16)).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(query, *cache, attn_mask=mask, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)[:, -1], cache


def test_attention_that_pytorch_widens_keeps_a_cache_in_16_bits():
    job = Job(
        MaskedAttention,
        lambda n: torch.zeros(n, 8, dtype=torch.long),
        lambda model, batch: model(batch, None)[0].mean(),
        generate=lambda model, tokens, cache: model(tokens, cache),
        name="masked",
    )
    generation = record_generation(job)
    bytes_of_token = 2 * 16 * 2  # keys and values of one head of 16, in bf16
    assert generation.cache_bytes_per_token == bytes_of_token
    assert {layer.dtype for layer in generation.attention} == {"bfloat16"}
    assert generation.cached_in(2.0).cache_bytes_per_token == bytes_of_token
    assert generation.cached_in(1.0).cache_bytes_per_token == bytes_of_token // 2


def test_states_that_do_not_grow_limit_the_sequences():
    engine = engines()["vllm"]
    state = 10**8
    generation = replace(record_generation(tiny()), attention=(), cache_bytes_per_token=0, cache_bytes_per_sequence=state)
    policy = engine.policy(generation, capacity_bytes=24 * 10**9, outside_bytes=10**9, longest=300)
    free = 0.9 * 24e9 - 1e9 - generation.weight_bytes
    assert 0 < policy.sequences * state <= free
    assert (
        policy.sequences
        < engine.policy(
            replace(generation, cache_bytes_per_sequence=1), capacity_bytes=24 * 10**9, outside_bytes=10**9, longest=300
        ).sequences
    )


@pytest.mark.parametrize(
    "model",
    [
        lambda: Llama(LlamaConfig(vocabulary=50, width=64, layers=2, heads=4, kv_heads=2, hidden=96)),
        lambda: Gpt2(Gpt2Config(vocabulary=50, width=64, layers=2, heads=4, positions=64)),
    ],
    ids=["llama", "gpt2"],
)
def test_logits_with_a_cache_are_those_without(model):
    torch.manual_seed(0)
    network, tokens = model().eval(), torch.randint(0, 50, (3, 20))
    with torch.no_grad():
        whole = network(tokens)
        cache = None
        for start, end in ((0, 7), (7, 12), *((i, i + 1) for i in range(12, 20))):
            logits, cache = generate(network, tokens[:, start:end], cache)
            torch.testing.assert_close(logits, whole[:, end - 1])


def test_windows_save_memory_of_the_cache_where_the_engine_lets_them(tmp_path: Path):
    """By hand: two layers of two heads of 16 in bf16, one of which keeps the 63 tokens that the next one still sees."""
    job = job_of(tmp_path, "gemma2")
    generation = record_generation(job, longest=job.context_length)
    layer = 2 * 2 * 16 * 2
    sizes = {"capacity_bytes": 24 * 10**9, "outside_bytes": 10**9, "longest": 1000}
    tokens = {name: engine.policy(generation, **sizes).cache_tokens for name, engine in engines().items()}
    whole = {name: engine.policy(replace(generation, attention=()), **sizes).cache_tokens for name, engine in engines().items()}
    assert tokens["vllm"] / whole["vllm"] == pytest.approx(2 * layer * 1000 / (layer * 1000 + layer * 63), rel=0.01)
    assert tokens["sglang"] / whole["sglang"] == pytest.approx(2 / 1.8, rel=0.01)
    assert tokens["tensorrt-llm"] == whole["tensorrt-llm"]
    assert tokens["vllm-2024"] == whole["vllm-2024"]
