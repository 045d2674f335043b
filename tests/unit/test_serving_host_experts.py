"""Experts on the host of a card: bytes against the parameters of real models, times against closed forms."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_serving_split_layers import GB, MB, Reads

from gpuwise.api.host_experts import HostExperts, sizes_of
from gpuwise.api.serving import serve_plan
from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.job.hf import hf_job
from gpuwise.serving.experts import ExpertShape, expert_shape, experts_alone, without_experts
from gpuwise.serving.formats import expert_bytes, format_of, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.host_experts import COPIES, COPY_S, ExpertBytes, ExpertStep, expert_split_of
from gpuwise.serving.sharing import GROUPED, distinct_experts
from gpuwise.serving.split_layers import BESIDE_A_CARD, COPIED_FROM
from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, PRODUCT, Weights
from gpuwise.tracing.generation import record_generation

transformers = pytest.importorskip("transformers")

MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
DENSE_FIRST = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "intermediate_size": 512,
    "first_k_dense_replace": 1,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
SHAPE = ExpertShape(layers=8, experts=64, chosen=4)
SIZES = ExpertBytes(10, (100 * MB,) * 8, rest=300 * MB, cache=200 * MB, embedding=70 * MB, buffers=50 * MB)
LOCAL = {"engine": "llama.cpp", "rate": "2/h", "input": 64, "output": 32, "spread": 0}


def folder_of(config: dict[str, object], folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module", params=[MIXTURE, DENSE_FIRST], ids=["all-layers", "dense-first"])
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Generation, torch.nn.Module]:
    job = hf_job(folder_of(request.param, tmp_path_factory.mktemp("mixture")), seq_len=128)
    with torch.device("meta"):
        model = job.model()
    return record_generation(job, precision="fp16", longest=2048), model


def brute_force(model: torch.nn.Module, chosen) -> int:
    """Bytes in gguf-f16 of the parameters whose names are chosen: two of a matrix, four of vectors and routers."""
    total = 0
    for name, parameter in model.named_parameters():
        if chosen(name):
            is_wide = parameter.dim() < 2 or name.endswith("mlp.gate.weight")
            total += parameter.numel() * (4 if is_wide else 2)
    return total


def test_bytes_on_each_side_are_those_of_the_parameters_by_name(mixture: tuple[Generation, torch.nn.Module]):
    generation, model = mixture
    shape = expert_shape(generation)
    assert shape is not None
    sizes = sizes_of(generation, format_of("gguf-f16"), shape, cache=0, buffers=0)

    def is_away(name: str, layers: int) -> bool:
        return ".mlp.experts." in name and int(name.split(".layers.")[1].split(".")[0]) < layers

    buffers = sum(each.elements * each.count * 4 for each in generation.weights if "inv_freq" in each.name)
    for layers in range(sizes.layers + 1):
        on_host = brute_force(model, lambda name, n=layers: is_away(name, n) or "embed_tokens" in name)
        on_card = brute_force(model, lambda name, n=layers: not is_away(name, n) and "embed_tokens" not in name)
        assert sizes.on_host(layers) == on_host
        assert sizes.on_card(layers) - max(sizes.away(layers), default=0) == on_card + buffers


def test_the_parts_are_the_model(mixture: tuple[Generation, torch.nn.Module]):
    generation, model = mixture
    shape = expert_shape(generation)
    assert shape is not None
    of_config = model.config
    assert shape.experts == getattr(of_config, "num_experts", 0) or of_config.n_routed_experts
    assert shape.chosen == of_config.num_experts_per_tok
    rest, experts = without_experts(generation), experts_alone(generation)
    positions = [len(each.tokens.sequence) for each in (rest, experts, generation)]
    assert positions[0] + positions[1] == positions[2]
    names = [rest.fused_tokens(5).operations.name, experts.fused_tokens(5).operations.name]
    assert [sum(GROUPED in name for name in part) for part in names] == [0, 2 * shape.layers]
    for name in ("gguf-q4_k_m", "gguf-q8_0", "int4", None):
        format = format_of(name) if name else None
        parts = [stored(generation, format, only=only).bytes for only in (lambda w: w.of_experts, lambda w: not w.of_experts)]
        assert sum(parts) == stored(generation, format).bytes
        assert parts[0] == sum(expert_bytes(generation, format, layers=shape.layers))


@pytest.mark.parametrize("cpu_experts", [0, 1, 2, 3, 7, 10])
def test_an_iteration_takes_the_bytes_of_each_part_over_its_bandwidth(cpu_experts: int):
    rest, card, host = Reads(0.004, 0.001), Reads(0.002, 9.0), Reads(0.040, 9.0)
    link, width = 25 * GB, 2048
    step = ExpertStep(rest, card, host, SIZES, cpu_experts, SHAPE, width, link)  # type: ignore[arg-type]
    away = max(cpu_experts - 2, 0)  # the first two layers have no experts
    assert len(SIZES.away(cpu_experts)) == away
    token_s = 0.005 + (8 - away) / 8 * 0.002 + BESIDE_A_CARD * away / 8 * 0.040
    token_s += away * (COPIES * COPY_S + (1 + 4) * width * 4 / link)
    assert step((), 1, 100) == pytest.approx(token_s)
    tokens = COPIED_FROM
    copied = away * 100 * MB * distinct_experts(64, 4, tokens) / 64
    assert step([(tokens - 1, 0)], 1, 100) == pytest.approx(0.005 + 0.002 + copied / link)
    # Nearly all experts are chosen by some token of a long prompt.
    assert step([(4096, 0)], 0, 0) == pytest.approx(0.007 + away * 100 * MB / link)


@given(
    st.integers(0, 4),
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.integers(0, 500),
    st.integers(0, 300),
    st.integers(0, 6000),
)
@settings(deadline=None, max_examples=80)
def test_as_few_experts_on_the_host_as_fit(dense: int, experts: list[int], rest: int, cache: int, capacity: int):
    sizes = ExpertBytes(dense + len(experts), tuple(experts), rest, cache, 5, 10)
    fits = [n for n in range(sizes.layers + 1) if sizes.on_card(n) <= capacity]
    assert sizes.fewest_on_host(capacity) == (fits[0] if fits else None)
    for n in range(sizes.layers + 1):  # nothing is lost
        both = sizes.on_card(n) + sizes.on_host(n) - max(experts[: max(n - dense, 0)], default=0)
        assert both == sum(experts) + rest + cache + 5 + 10
        assert n == 0 or sizes.on_host(n) >= sizes.on_host(n - 1)


def test_what_does_not_fit_is_refused_with_the_way_out():
    def split(requested, card_bytes: int = 24 * GB, host_bytes: int = 64 * GB):
        return expert_split_of(SIZES, requested, card="a card", card_bytes=card_bytes, host="a host", host_bytes=host_bytes)

    assert (split("auto").cpu_experts, split("all").cpu_experts, split(3).cpu_experts) == (0, 10, 3)
    small = split("auto", card_bytes=1100 * MB)
    assert small.cpu_experts == 6  # 550 + 4 x 100 + 100 MB of a visitor; the first two layers have none
    assert small.host_bytes == 470 * MB
    with pytest.raises(InputError, match="10 layers") as refused:
        split(11)
    assert refused.value.ways_out == ("--cpu-experts all", "--cpu-experts auto (as few as fit)")
    with pytest.raises(InputError, match="a card") as refused:
        split(2, card_bytes=1100 * MB)
    assert "--cpu-experts 6" in refused.value.ways_out
    for requested in ("auto", "all", 10):
        with pytest.raises(InputError, match="a card") as refused:
            split(requested, card_bytes=500 * MB)
        assert any("--gpu-layers" in way for way in refused.value.ways_out)
    with pytest.raises(InputError, match="a host") as refused:
        split("all", host_bytes=800 * MB)
    assert "--host-memory 1GiB" in refused.value.ways_out


def test_texts():
    assert HostExperts.of(" Auto ", host=None, memory_bytes=None) == HostExperts("auto")
    assert HostExperts.of("ALL", host="here", memory_bytes=5) == HostExperts("all", "here", 5)
    assert HostExperts.of("12", host=None, memory_bytes=None).layers == 12
    for text in ("-1", "none", "", "1.5", "9" * 40, "٣"):
        with pytest.raises(InputError):
            HostExperts.of(text, host=None, memory_bytes=None)


@pytest.mark.slow
def test_a_mixture_on_a_card_and_its_host(tmp_path: Path):
    job = f"hf:{folder_of({**MIXTURE, 'num_hidden_layers': 4}, tmp_path / 'model')}"
    rows = []
    for layers in ("0", "2", "all"):
        result = serve_plan(job, on="rtx-4060", weights="gguf-q8_0", cpu_experts=layers, host="ryzen-5950x", **LOCAL)
        rows.append(result.rows[0])
    assert "experts of the first 4 of 4 layers and the embedding on ryzen-5950x" in " ".join(str(result).split())
    assert [row.mode.cpu_experts for row in rows] == [0, 2, 4]
    assert rows[0].mode.card_bytes > rows[1].mode.card_bytes > rows[2].mode.card_bytes
    assert rows[0].alone_latency_s < rows[1].alone_latency_s < rows[2].alone_latency_s
    plain = serve_plan(job, on="rtx-4060", weights="gguf-q8_0", **LOCAL).rows[0]
    assert rows[0].alone_latency_s == pytest.approx(plain.alone_latency_s, rel=0.1)
    words = shlex.split(rows[2].launch)
    assert words[words.index("--n-cpu-moe") + 1] == "4"
    assert words[words.index("--n-gpu-layers") + 1] == "all"
    assert "--no-mmap" in words
    assert rows[2].to_dict()["mode"]["cpu_experts"] == 4
    auto = serve_plan(job, on="rtx-4060", cpu_experts="auto", **LOCAL)
    assert auto.rows[0].mode.cpu_experts == 0
    assert {note.kind for note in auto.assumption_notes} >= {"assumed-host", "experts-on-host"}


def test_models_and_engines_without_experts_to_leave():
    with pytest.raises(JobError, match="no experts") as refused:
        serve_plan("gpt2", on="l4", cpu_experts="all", **LOCAL)
    assert "--gpu-layers" in refused.value.ways_out[0]
    with pytest.raises(InputError, match="keeps all layers") as refused:
        serve_plan("gpt2", on="l4", rate="1/s", cpu_experts="all")
    assert "--engine llama.cpp" in refused.value.ways_out
    with pytest.raises(InputError, match="together"):
        serve_plan("gpt2", on="l4", cpu_experts="all", gpu_layers="3", **LOCAL)
    with pytest.raises(InputError, match="needs devices"):
        serve_plan("gpt2", cpu_experts="auto", **LOCAL)
    with pytest.raises(UnsupportedError, match="nothing to split"):
        serve_plan("gpt2", on="apple-m4-max", cpu_experts="auto", **LOCAL)


def test_bytes_of_gpt_oss_are_those_of_its_published_file():
    """gpt-oss-20b-mxfp4.gguf is 11.27 GiB: ggml-org/llama.cpp#16991 has what llama-bench prints of it."""
    shapes = {
        "model.embed_tokens.weight": ((201_088, 2880), 1, EMBEDDING),
        "lm_head.weight": ((201_088, 2880), 1, HEAD),
        "model.layers.*.self_attn.q_proj.weight": ((4096, 2880), 24, PRODUCT),
        "model.layers.*.self_attn.k_proj.weight": ((512, 2880), 24, PRODUCT),
        "model.layers.*.self_attn.v_proj.weight": ((512, 2880), 24, PRODUCT),
        "model.layers.*.self_attn.o_proj.weight": ((2880, 4096), 24, PRODUCT),
        "model.layers.*.mlp.router.weight": ((32, 2880), 24, OTHER),
        "model.layers.*.mlp.experts.gate_up_proj": ((32, 2880, 5760), 24, PRODUCT),
        "model.layers.*.mlp.experts.gate_up_proj_bias": ((32, 5760), 24, OTHER),
        "model.layers.*.mlp.experts.down_proj": ((32, 2880, 2880), 24, PRODUCT),
        "model.layers.*.mlp.experts.down_proj_bias": ((32, 2880), 24, OTHER),
    }
    weights = tuple(Weights(name, shape, count, 2, role) for name, (shape, count, role) in shapes.items())
    alone = replace(Generation(None, None, (), (), 0, 0, 0), weights=weights)  # type: ignore[arg-type]
    assert stored(alone, format_of("gguf-mxfp4")).bytes / 2**30 == pytest.approx(11.27, abs=0.006)
