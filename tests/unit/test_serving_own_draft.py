"""Drafts that are a part of the model: bytes against real modules, products against matrices."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from tests.one_recording import one_recording  # noqa: F401
from tests.quick import quick
from tests.unit.test_serving_host_experts import DENSE_FIRST, MIXTURE, folder_of
from torch import nn

from gpuwise.api.drafting import OWN_DEFAULTS, DraftSettings
from gpuwise.api.serving import serve_plan
from gpuwise.errors import JobError
from gpuwise.job.hf import hf_job
from gpuwise.serving.formats import format_of
from gpuwise.serving.generation import Generation
from gpuwise.serving.launch_modes import with_own_draft
from gpuwise.serving.own_draft import EAGLE_VOCABULARY, own_draft
from gpuwise.serving.weights import HEAD, PRODUCT
from gpuwise.tracing.generation import record_generation

transformers = pytest.importorskip("transformers")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 768,
    "vocab_size": 40_000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
PREDICTS = {**DENSE_FIRST, "num_nextn_predict_layers": 1}
LOAD = {"rate": "2/s", "input": 200, "output": 100}


def recorded(config: dict[str, object], folder: Path) -> tuple[Generation, nn.Module]:
    job = hf_job(folder_of(config, folder), seq_len=128)
    with torch.device("meta"):
        model = job.model()
    return record_generation(job, precision="bf16", longest=2048), model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Generation, nn.Module]:
    return recorded(LLAMA, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Generation, nn.Module]:
    return recorded(PREDICTS, tmp_path_factory.mktemp("mixture"))


def elements(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def eagle(model: nn.Module) -> nn.Module:
    """EAGLE-3's module beside a Llama, as its published code has it: https://github.com/SafeAILab/EAGLE, cnets.py."""
    config = model.config
    with torch.device("meta"):
        layer = transformers.models.llama.modeling_llama.LlamaDecoderLayer(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            columns = getattr(layer.self_attn, name).out_features
            setattr(layer.self_attn, name, nn.Linear(2 * config.hidden_size, columns, bias=False))
        layer.hidden_norm = nn.RMSNorm(config.hidden_size)
        head = nn.Linear(config.hidden_size, EAGLE_VOCABULARY, bias=False)
        return nn.ModuleList(
            [layer, nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False), nn.RMSNorm(config.hidden_size), head]
        )


def test_bytes_of_eagle_are_those_of_its_module(llama: tuple[Generation, nn.Module]):
    generation, model = llama
    assert own_draft(generation, "eagle3").stored(None).bytes == 2 * elements(eagle(model))


@pytest.mark.parametrize("which", quick(["llama", "mixture"], slow=["mixture"]))
def test_bytes_of_mtp_are_those_of_the_last_layer_and_what_joins(which: str, request: pytest.FixtureRequest):
    generation, model = request.getfixturevalue(which)
    width = model.config.hidden_size
    with torch.device("meta"):
        joins = [nn.Linear(2 * width, width, bias=False), *(nn.RMSNorm(width) for _ in range(3))]
    draft = own_draft(generation, "mtp")
    assert draft.stored(None).bytes == 2 * elements(model.model.layers[-1], *joins)
    layers = sum(each.layers for each in generation.attention)
    assert draft.generation.cache_bytes_per_token * layers == generation.cache_bytes_per_token
    assert draft.stored(format_of("fp8")).bytes < draft.stored(None).bytes


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_each_matrix_is_multiplied_once(kind, llama: tuple[Generation, nn.Module]):
    draft = own_draft(llama[0], kind).generation
    for tokens in (1, 7, 300):
        trace = draft.tokens.at(micro_batch=1, new_tokens=tokens)
        rows = trace.sequence.operation
        n, k, m = (trace.operations.column(name)[rows] for name in "nkm")
        products = sum(each.elements * each.count for each in draft.weights if each.role == PRODUCT)
        assert int((n * k).sum()) == products
        assert int(trace.operations.column("flops")[rows][k > 0].sum()) == 2 * tokens * products
        assert set(m[k > 0].tolist()) == {tokens}
        read = trace.operations.column("bytes_read")[rows][k > 0]
        assert int(read.sum()) == int((2 * (n * k + m * k)).sum())
    head = draft.head.at(micro_batch=3, new_tokens=1)
    columns = EAGLE_VOCABULARY if kind == "eagle3" else LLAMA["vocab_size"]
    assert int(head.operations.column("n")[head.sequence.operation].max()) == columns
    assert [each.count for each in draft.weights if each.role == HEAD] == ([1] if kind == "eagle3" else [])


def test_eagle_beside_a_mixture_does_not_follow_from_it(mixture: tuple[Generation, nn.Module]):
    with pytest.raises(JobError, match="mixture"):
        own_draft(mixture[0], "eagle3")


def test_defaults_are_those_measured():
    for kind, (tokens, acceptance, _) in OWN_DEFAULTS.items():
        settings = DraftSettings.of(kind, draft_tokens=None, acceptance=None)
        assert (settings.own, settings.speculation.draft_tokens, settings.speculation.acceptance) == (kind, tokens, acceptance)
    assert DraftSettings.of("eagle3", draft_tokens=3, acceptance=None).speculation.stride == pytest.approx(2.79, abs=0.03)
    assert DraftSettings.of("gpt2", draft_tokens=None, acceptance=0.5).own is None


@pytest.mark.slow
def test_a_plan_with_eagle(tmp_path: Path):
    larger = {**LLAMA, "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24}
    job = hf_job(str(folder_of(larger, tmp_path / "model")))
    plain = serve_plan(job, on="h100-80gb-sxm", **LOAD).rows[0]
    result = serve_plan(job, on="h100-80gb-sxm", draft="eagle3", acceptance=0.8, **LOAD)
    row = result.rows[0]
    assert row.mode.draft_weight_bytes < plain.weight_bytes / 2
    assert row.cache_tokens < plain.cache_tokens
    slow = serve_plan(job, on="h100-80gb-sxm", draft="eagle3", acceptance=0.1, **LOAD).rows[0]
    assert row.alone_latency_s < slow.alone_latency_s  # the more is accepted, the faster
    config = json.loads(shlex.split(row.launch)[-1])
    assert config == {"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}
    assert any("the draft's weights in bf16" in note for note in result.assumptions)


def test_a_plan_with_mtp(tmp_path: Path):
    job = f"hf:{folder_of(PREDICTS, tmp_path / 'model')}"
    result = serve_plan(job, on="h100-80gb-sxm", draft="mtp", **LOAD)
    assert result.rows[0].mode.tokens_an_iteration == pytest.approx(1.82)
    assert any("DeepSeek-R1" in note for note in result.assumptions)
    several = serve_plan(job, on="h100-80gb-sxm:2", draft="mtp", **LOAD).rows[0]
    assert several.mode.draft_weight_bytes < result.rows[0].mode.draft_weight_bytes


def test_a_model_without_layers_that_predict(tmp_path: Path):
    for job in ("gpt2", f"hf:{folder_of(MIXTURE, tmp_path / 'model')}"):
        with pytest.raises(JobError, match="no layers that predict") as refused:
            serve_plan(job, on="l4", draft="mtp", **LOAD)
        assert "--draft eagle3" in refused.value.ways_out[0]


def test_launch_lines_of_own_drafts():
    assert json.loads(shlex.split(with_own_draft("vllm serve m", "vllm", "mtp", 2))[-1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    server = with_own_draft("sglang", "sglang", "eagle3", 3)
    assert "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT --speculative-num-steps 3" in server
    assert server.endswith("--speculative-eagle-topk 1 --speculative-num-draft-tokens 4")
    assert "NEXTN --speculative-num-steps 1" in with_own_draft("sglang", "sglang", "mtp", 1)
    assert "--spec-type draft-mtp --spec-draft-n-max 2" in with_own_draft("llama-server", "llama.cpp", "mtp", 2)
    assert with_own_draft("trtllm-serve m", "tensorrt-llm", "mtp", 1) == with_own_draft("", "vllm", "mtp", 1) == ""
