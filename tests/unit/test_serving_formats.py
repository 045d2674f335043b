"""Formats of weights: bytes against published files and real quantizers, and what iterations then take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.serving.models import CONFIGS

from gpuwise.api.devices import device_of
from gpuwise.errors import InputError, UnknownNameError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.job import Job
from gpuwise.job.hf import hf_job
from gpuwise.job.models.generation import generate
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engines
from gpuwise.serving.formats import StoredWeights, format_of, formats, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.step_time import EngineStep
from gpuwise.serving.weights import HEAD, OTHER, PRODUCT, Weights
from gpuwise.tracing.generation import record_generation

pytest.importorskip("transformers")

LLAMA = CONFIGS["llama-3-8b"]
LLAMA_2 = CONFIGS["llama-2-7b"]
SMALL = {
    **LLAMA,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 512,
}
# Bytes of the tensors in published files, as llama-bench prints them (lhl/strix-halo-testing, Apache-2.0).
FILES = [
    (LLAMA_2, "gguf-q4_0", 3_825_065_984),
    pytest.param(LLAMA_2, "gguf-q4_k_m", 4_080_263_168, marks=pytest.mark.slow),
    pytest.param(LLAMA, "gguf-q4_k_m", 4_912_898_304, marks=pytest.mark.slow),
]


def generation(config: dict[str, object], folder: Path) -> Generation:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return record_generation(hf_job(str(folder), seq_len=128), longest=8192)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    return generation(SMALL, tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(("config", "name", "published"), FILES)
def test_bytes_of_gguf_files_are_those_published(config: dict[str, object], name: str, published: int, tmp_path: Path):
    assert stored(generation(config, tmp_path), format_of(name)).bytes == pytest.approx(published, rel=1e-6)


def test_tied_heads_are_wider_than_other_products(tmp_path: Path):
    weights = stored(generation({**SMALL, "tie_word_embeddings": True}, tmp_path), format_of("gguf-q4_0"))
    assert (weights.head_bytes, weights.product_bytes) == (210 / 256, 18 / 32)


def test_bytes_of_nf4_are_those_that_bitsandbytes_allocates(small: Generation):
    functional = pytest.importorskip("bitsandbytes.functional")
    weights = Weights("layers.*.up.weight", (1024, 512), 1, 2, PRODUCT)
    packed, state = functional.quantize_4bit(torch.randn(1024, 512), quant_type="nf4", compress_statistics=True)
    real = (
        packed.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    )  # without two code books a tensor, which are constants
    assert stored(replace(small, weights=(weights,)), format_of("nf4")).bytes == pytest.approx(real, rel=1e-3)


def test_scales_count():
    weights = Weights("layers.*.up.weight", (256, 200), 3, 2, PRODUCT)
    alone = replace(_nothing(), weights=(weights,))
    elements = 256 * 200
    assert stored(alone, format_of("fp8")).bytes == 3 * elements
    assert stored(alone, format_of("int8")).bytes == 3 * (elements + 2 * 256)  # a scale of 16 bits a row
    assert stored(alone, format_of("int4")).bytes == 3 * (
        elements // 2 + 256 * 2 * 20 // 8
    )  # two groups a row, the last one not full
    assert stored(alone, format_of("mxfp4")).bytes == 3 * (elements // 2 + 256 * 7)
    assert stored(alone, None).bytes == 3 * elements * 2


def _nothing() -> Generation:
    return Generation(None, None, (), (), 0, 0, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in formats() if name != "gguf-f16"])
def test_fewer_bytes_than_16_bits(name: str, small: Generation):
    assert stored(small, format_of(name)).bytes < small.weight_bytes


def test_a_narrower_cache_leaves_the_weights_as_they_are(small: Generation):
    for name in ("gguf-q2_k", "gguf-q4_k_m"):
        assert stored(small.cached_in(34 / 32), format_of(name)) == stored(small, format_of(name))


def test_gates_of_dense_layers_are_no_routers(small: Generation):
    gate = next(each for each in small.weights if each.name.endswith("gate_proj.weight"))
    assert gate.role == PRODUCT
    dense = next(each for each in record_generation(dense_job()).weights if each.name.endswith("mlp.gate.weight"))
    assert (dense.shape, dense.role) == ((128, 64), PRODUCT)


def dense_job() -> Job:
    config = LlamaConfig(vocabulary=256, width=64, layers=2, heads=4, kv_heads=2, hidden=128)
    tokens = torch.zeros(1, 32, dtype=torch.long)
    return Job(lambda: Llama(config), lambda n: tokens.expand(n, -1), lambda m, batch: m(batch).sum(), generate=generate)


def test_routers_stay_wide(tmp_path: Path):
    mixture = {**SMALL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
    weights = generation(mixture, tmp_path).weights
    assert {each.role for each in weights if each.name.endswith("mlp.gate.weight")} == {OTHER}
    assert {each.role for each in weights if ".experts." in each.name} == {PRODUCT}


@pytest.mark.parametrize("device", ["rtx-4090", "a100-80gb-sxm", "apple-m4-max"])
def test_a_token_takes_no_longer_with_narrower_weights(device: str, tmp_path: Path):
    in_half = generation_in_half(tmp_path)
    cluster = device_of(device, load_catalog()).cluster
    token_s = [
        EngineStep(in_half, cluster, weights=stored(in_half, format_of(name) if name else None))([], 1, 100)
        for name in (None, "gguf-q8_0", "gguf-q6_k", "gguf-q5_0", "gguf-q4_0")
    ]
    assert token_s == sorted(token_s, reverse=True)


def generation_in_half(folder: Path) -> Generation:
    (folder / "config.json").write_text(json.dumps(SMALL))
    return record_generation(hf_job(str(folder), seq_len=128), precision="fp16", longest=8192)


def test_low_bit_arithmetic_is_used_where_the_device_has_it(tmp_path: Path):
    wide = generation({**LLAMA, "num_hidden_layers": 2}, tmp_path)

    def reading_s(device: str, name: str | None) -> float:
        cluster = device_of(device, load_catalog()).cluster
        weights = stored(wide, format_of(name) if name else None)
        return EngineStep(wide, cluster, weights=weights)([(8192, 0)], 0, 0)

    assert reading_s("h100-80gb-sxm", "fp8") < 0.9 * reading_s("h100-80gb-sxm", None)
    assert reading_s("a100-80gb-sxm", "fp8") > 0.9 * reading_s("a100-80gb-sxm", None)  # weights only: products in 16 bits


def test_kernels_run_one_by_one_take_longer(small: Generation):
    cluster = device_of("rtx-4090", load_catalog()).cluster
    fused, single = (EngineStep(small, cluster, costs=EngineCosts(kernel_s=s))([], 1, 100) for s in (0.0, 1e-6))
    operations = sum(len(part.at(micro_batch=1, new_tokens=1).sequence.operation) for part in (small.tokens, small.head))
    assert single - fused == pytest.approx(1e-6 * operations)


def test_every_format_has_an_engine_and_words_on_quality():
    for format in formats().values():
        assert format.quality
        assert set(format.engines) <= set(engines())


def test_a_format_that_no_engine_reads_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="int3"):
        format_of("int3")


def test_an_engine_that_lacks_a_format_says_which_it_has(tmp_path: Path):
    from gpuwise import serve_plan

    with pytest.raises(InputError, match="vllm has no figures for weights in gguf-q4_0"):
        serve_plan("llama3-8b", on="h100-80gb-sxm", rate="1/s", weights="gguf-q4_0")


def test_a_narrower_cache_takes_its_share(small: Generation):
    half = small.cached_in(1.0)
    assert half.cache_bytes(1000) == pytest.approx(small.cache_bytes(1000) / 2, rel=1e-3)
    assert small.cached_in(2.0) is small
    cluster = device_of("h100-80gb-sxm", load_catalog()).cluster
    assert EngineStep(half, cluster)([], 64, 64 * 6000) < EngineStep(small, cluster)([], 64, 64 * 6000)


def test_a_processor_reads_weights_at_its_share_of_the_bandwidth(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    wide = record_generation(hf_job(str(tmp_path), seq_len=128), precision="fp32", target="cpu", longest=8192)
    cluster = device_of("ryzen-5950x", load_catalog()).cluster
    weights = stored(wide, format_of("gguf-q4_0"))
    bandwidth = cluster.chip.memory_bandwidth_bytes_per_s
    assert bandwidth is not None
    read_s = sum(each.count * each.elements * size for each, size in _products(wide, weights)) / (0.5 * bandwidth)
    step_s = EngineStep(wide, cluster, weights=weights, costs=EngineCosts(cpu_share=0.5))([], 1, 100)
    assert read_s < step_s < 1.1 * read_s


def _products(generation: Generation, weights: StoredWeights) -> list[tuple[Weights, float]]:
    heads = [(each, weights.head_bytes) for each in generation.weights if each.role == HEAD]
    return [*heads, *((each, weights.product_bytes) for each in generation.weights if each.role == PRODUCT)]


def test_a_processor_is_answered_with_llama_cpp_alone():
    from gpuwise import serve_plan

    options = {"on": "ryzen-5950x", "rate": "10/h", "input": 64, "output": 32}
    served = serve_plan("gpt2", engine="llama.cpp", cache="q8_0", **options)
    assert served.rows[0].replicas == 1
    assert "llama-server" in served.rows[0].launch
    assert any("64 GiB" in sentence for sentence in served.assumptions)
    with pytest.raises(UnsupportedError, match="vllm on a CPU") as refusal:
        serve_plan("gpt2", **options)
    assert refusal.value.ways_out == ("--engine llama.cpp",)


def test_a_cache_that_no_engine_has():
    from gpuwise import serve_plan

    with pytest.raises(InputError, match="vllm has no cache in q8_0"):
        serve_plan("gpt2", on="h100-80gb-sxm", rate="1/s", cache="q8_0")


@pytest.mark.parametrize(
    ("job", "device", "weights"),
    [
        ("llama3-8b", "rtx-3060", "int8"),  # 8.0 G weights: 16.1 GB in bf16, and the card has 12.7 GB but no fp8
        ("llama3-8b", "rtx-4060-ti-8gb", None),  # in int4 its cache holds 1,775 tokens, and 6 % of the requests are longer
        ("llama3-70b", "h100-sxm", "int4"),  # 70.6 GB in fp8 and 7 beside them, of 76
        ("llama3-70b", "h200-sxm", "fp8"),
        ("llama3-405b", "h100-sxm", None),
    ],
)
def test_weights_that_do_not_fit_come_with_the_widest_format_that_does(job: str, device: str, weights: str | None):
    from gpuwise import serve_plan

    with pytest.raises(UnsupportedError, match="none of these devices serves") as refused:
        serve_plan(job, rate="1/s", on=[device])
    ways = [way for way in refused.value.ways_out if way.startswith("--weights")]
    assert ways == ([f"--weights {weights}"] if weights else [])
    if weights:
        assert serve_plan(job, rate="1/s", on=[device], weights=weights).rows[0].reason == ""
