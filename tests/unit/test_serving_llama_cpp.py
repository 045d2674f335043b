"""serve_check on llama.cpp: its files against Transformers' tokens and forecast bytes, and its server under a load."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gpuwise.api.serving_check import serve_check
from gpuwise.api.serving_load import check_plan
from gpuwise.errors import InputError, JobError, MissingDependencyError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.hf import hf_job
from gpuwise.job.job import meta_model
from gpuwise.job.models.generation import generate
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.runtime.gguf import quantizer
from gpuwise.runtime.gguf.architectures import llama_cpp_model
from gpuwise.runtime.gguf.file import typed_tensors, write_gguf
from gpuwise.runtime.serving import llama_cpp
from gpuwise.runtime.serving.llama_cpp import LlamaCppEngine
from gpuwise.serving import ggml
from gpuwise.serving.formats import format_of, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.serving.served import span_with_work_s
from gpuwise.tracing.generation import record_generation

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
pytest.importorskip("transformers")

PROMPT = [7, 3, 55, 21, 80, 9, 14, 60, 4, 33]
WRITTEN = 12
CLEAR = 0.05  # of the standard deviation of logits: what is likeliest is so far ahead that rounding to 16 bits changes nothing
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LONG = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama", **SIZES},
    "llama, biases and a shared head": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        **SIZES,
    },
    "llama 3.1": {
        "model_type": "llama",
        "rope_theta": 5e5,
        "rope_scaling": {**LONG, "original_max_position_embeddings": 32},
        **SIZES,
    },
    "mistral": {"model_type": "mistral", "head_dim": 32, **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, **SIZES},
    "gemma": {"model_type": "gemma", "head_dim": 32, **SIZES},
    "gpt2": {"model_type": "gpt2", "vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
}
CLASSES = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}
OURS: dict[str, Callable[[], nn.Module]] = {
    "our llama": lambda: Llama(LlamaConfig(vocabulary=96, width=64, layers=2, heads=4, kv_heads=2, hidden=96)),
    "our gpt2": lambda: Gpt2(Gpt2Config(vocabulary=96, positions=256, width=64, layers=2, heads=4, dropout=0.0)),
}


def job_of_config(config: dict[str, object], folder: Path) -> Job:
    kind = str(config["model_type"])
    architecture = CLASSES.get(kind, f"{kind.capitalize()}ForCausalLM")
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    return hf_job(str(folder))


def our_job(make: Callable[[], nn.Module], **changes: object) -> Job:
    return Job(
        make,
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        **{"generate": generate, "name": "small", "context_length": 64, **changes},
    )


@pytest.fixture
def llama_folder(tmp_path: Path) -> str:
    job_of_config(CONFIGS["llama"] | {"max_position_embeddings": 64}, tmp_path)
    return f"hf:{tmp_path}"


def lively(job: Job, seed: int) -> nn.Module:
    """The job's model with weights so large that its likeliest tokens differ, as a file in fp16 has them."""
    torch.manual_seed(seed)
    model = job.model().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                words = any(part in name for part in ("embed", "wte", "wpe", "words", "positions"))
                parameter.mul_(4 if words else 12)
            else:
                parameter.add_(0.4 * torch.randn_like(parameter))
            parameter.copy_(parameter.half().float())
    return model


def likeliest(job: Job, model: nn.Module) -> tuple[list[int], float]:
    """Tokens that the job's own code writes, and how far the likeliest is at least ahead, in standard deviations."""
    assert job.generate is not None
    tokens, cache, written, ahead = torch.tensor([PROMPT]), None, [], []
    for _ in range(WRITTEN):
        with torch.no_grad():
            logits, cache = job.generate(model, tokens, cache)
        logits = logits[:, -1] if logits.dim() == 3 else logits
        logits[:, 2] = -torch.inf  # the end of a text, which llama.cpp does not write
        (first, second), (tokens, _) = (each[0, :2] for each in logits.sort(descending=True))
        ahead.append(float(first - second) / float(logits[logits.isfinite()].std()))
        written.append(int(tokens))
        tokens = tokens[None, None]
    return written, min(ahead)


def engine(job: Job, *, slots: int = 1, context: int = 64, mix: str = "f16") -> LlamaCppEngine:
    policy = BatchingPolicy(512, slots, slots * context, block_tokens=1)
    return LlamaCppEngine(job, mix=mix, policy=policy, context=context, threads=1)


@pytest.mark.parametrize("name", [*CONFIGS, *OURS])
def test_llama_cpp_writes_the_tokens_of_pytorch(name: str, tmp_path: Path):
    job = our_job(OURS[name]) if name in OURS else job_of_config(CONFIGS[name], tmp_path)
    for seed in range(50):
        model = lively(job, seed)
        expected, ahead = likeliest(job, model)
        if ahead > CLEAR and len(set(expected)) > 4:
            break
    else:
        pytest.fail("no seed has clear tokens")
    with engine(replace(job, model=lambda: model)) as served:
        assert served.written(PROMPT, WRITTEN) == expected


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Generation]:
    """A Llama whose rows hold whole blocks of 256."""
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "vocab_size": 512}
    job = job_of_config({"model_type": "llama", **sizes}, tmp_path_factory.mktemp("wide"))
    return job, record_generation(job, precision="fp32", longest=256)


@pytest.mark.parametrize("mix", ggml.MIXES)
def test_bytes_of_a_file_are_those_of_the_forecast(mix: str, wide: tuple[Job, Generation], tmp_path: Path):
    job, generation = wide
    torch.manual_seed(0)
    write_gguf(tmp_path / "model.gguf", llama_cpp_model(job.model(), name="wide"), mix, context=64)
    written = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors)
    assert written == pytest.approx(stored(generation, format_of(f"gguf-{mix}")).bytes, rel=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "our gpt2", "llama, biases and a shared head"])
@pytest.mark.parametrize("mix", ["q4_k_m", "q8_0", "f16"])
def test_bytes_of_tensors_of_other_models_are_those_of_the_forecast(name: str, mix: str, tmp_path: Path):
    """Rows of 64 and 96 elements hold no block of 256, so that other types stand in."""
    job = our_job(OURS[name]) if name in OURS else job_of_config(CONFIGS[name], tmp_path)
    tensors = typed_tensors(llama_cpp_model(meta_model(job), name=name), mix)
    generation = record_generation(job, precision="fp32", longest=64)
    in_a_file = tuple(each for each in generation.weights if "inv_freq" not in each.name)  # buffers of the code alone
    forecast = stored(replace(generation, weights=in_a_file), format_of(f"gguf-{mix}")).bytes
    assert sum(each.bytes for each in tensors) == pytest.approx(forecast, rel=1e-3)


def test_a_mix_that_cannot_be_written_names_the_nearest(monkeypatch: pytest.MonkeyPatch):
    numbers = np.random.default_rng(0).standard_normal((7, 256)).astype(np.float32)
    exact = quantizer.Quantizer(threads=2).quantized(numbers, "q5_0")
    monkeypatch.setattr(quantizer, "_quantize_chunk", lambda: None)
    plain = quantizer.Quantizer()
    plain.check({"q8_0", "f16", "f32"}, mix="q8_0")
    np.testing.assert_array_equal(plain.quantized(numbers, "q5_0"), exact)
    with pytest.raises(UnsupportedError, match="q4_k, q6_k") as raised:
        plain.check({"q4_k", "q6_k", "f32"}, mix="q4_k_m")
    assert raised.value.ways_out[0] == "--weights gguf-q4_0"


def test_a_load_is_served_and_compared(llama_folder: str):
    result = serve_check(
        llama_folder, engine="llama.cpp", weights="gguf-q8_0", rate="inf", requests=12, input=8, output=4, batch=2
    )
    assert result.counts.answered == result.counts.forecast_answered == 12
    assert set(result.latency) == {"ttft_s", "tpot_s", "latency_s"}
    assert result.capacity.measured is not None
    assert (result.settings["engine"], result.settings["weights"]) == ("llama.cpp", "gguf-q8_0")
    assert 0 < result.to_dict()["utilisation"]["measured"] <= 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("slot")]


def test_times_of_requests_follow_each_other():
    load = requests(np.zeros(9), np.full(9, 5), np.array([1, 2, 3] * 3))
    with engine(our_job(OURS["our llama"]), slots=3) as served:
        outcome = served.replay(load, queue=None)
    first_s, end_s = outcome.served.first_token_s, outcome.served.end_s
    assert outcome.ended.all()
    assert (first_s > 0).all()
    assert (end_s >= first_s).all()
    assert outcome.served.busy_s <= outcome.served.span_s * (1 + 1e-9)


def test_a_full_queue_turns_away():
    load = requests(np.zeros(50), np.full(50, 8), np.full(50, 50))
    with engine(our_job(OURS["our llama"])) as served:
        outcome = served.replay(load, queue=2)
        everything = served.replay(load.of(slice(0, 5)), queue=None)
    assert len(outcome.turned_away) >= 40
    assert outcome.ended.all()
    assert not everything.turned_away


def test_nothing_stays_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with engine(our_job(OURS["our gpt2"])) as served:
        assert list(tmp_path.iterdir()) == []
        assert len(served.written([5], 3)) == 3


def test_ctrl_c_keeps_what_had_ended(monkeypatch: pytest.MonkeyPatch):
    load = requests(np.zeros(40), np.full(40, 8), np.full(40, 50))
    with engine(our_job(OURS["our llama"]), slots=2) as served:
        real = llama_cpp._complete
        ended: list[int] = []

        def interrupting(*arguments: object) -> bool:
            complete = real(*arguments)
            ended.append(1)
            if len(ended) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return complete

        monkeypatch.setattr(llama_cpp, "_complete", interrupting)
        outcome = served.replay(load, queue=None)
        monkeypatch.undo()
        assert outcome.interrupted
        assert 4 <= outcome.ended.sum() < 40
        assert np.isnan(outcome.served.first_token_s[~outcome.ended]).all()
        assert len(served.written([5], 3)) == 3  # it still serves


def test_a_request_that_ends_early_is_an_error():
    load = requests(np.zeros(3), np.full(3, 500), np.full(3, 5))
    with engine(our_job(OURS["our llama"])) as served, pytest.raises(JobError, match="None of 5 tokens"):
        served.replay(load, queue=None)


@pytest.mark.parametrize("seed", range(20))
def test_time_with_work_is_that_of_instants_with_a_request(seed: int):
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.integers(0, 6, 30)).astype(float)
    end_s = arrival_s + rng.integers(1, 9, 30)
    end_s[rng.random(30) < 0.2] = np.nan
    instants = np.arange(0, 300) + 0.5
    with_work = (arrival_s[:, None] < instants) & (instants < end_s[:, None])
    assert span_with_work_s(arrival_s, end_s) == with_work.any(axis=0).sum()
    assert span_with_work_s(arrival_s, np.full(30, np.nan)) == 0.0


def mixtral() -> Mixtral:
    return Mixtral(MixtralConfig(vocabulary=96, width=64, layers=2, heads=4, kv_heads=2, hidden=96, experts=2))


@pytest.mark.parametrize(
    ("job", "settings", "words"),
    [
        (our_job(mixtral), {}, "the kind Mixtral"),
        (our_job(OURS["our llama"], generate=None), {}, "does not generate"),
        (our_job(OURS["our llama"]), {"window": "5ms"}, "no --window"),
        (our_job(OURS["our llama"]), {"patience": "5s"}, "no --patience"),
        (our_job(OURS["our llama"]), {"precision": "bf16"}, "no --precision"),
        (our_job(OURS["our llama"]), {"weights": "fp8"}, "no weights in fp8"),
        (our_job(OURS["our llama"], context_length=None), {"batch": 50_000, "input": 50_000}, "do not fit"),
    ],
)
def test_what_llama_cpp_does_not_serve(job: Job, settings: dict[str, object], words: str):
    with pytest.raises((InputError, UnsupportedError), match=words):
        check_plan(job, engine="llama.cpp", **settings)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "olmo2"}, "the kind olmo2"),
        ({"model_type": "qwen2", "rope_scaling": {**LONG, "original_max_position_embeddings": 32}}, "no rotary positions"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "computes silu, not gelu"),
        ({"model_type": "mistral", "sliding_window": 16}, "window of 16"),
    ],
)
def test_models_that_differ_from_those_of_llama_cpp(config: dict[str, object], words: str, tmp_path: Path):
    with pytest.raises(UnsupportedError, match=words):
        check_plan(job_of_config(SIZES | config, tmp_path), engine="llama.cpp", input=40, output=20)


def test_weights_are_of_llama_cpp():
    with pytest.raises(InputError, match="--weights names a format"):
        check_plan(our_job(OURS["our llama"]), weights="gguf-q8_0")


@pytest.mark.parametrize("package", ["xllamacpp", "gguf"])
def test_a_missing_package_names_its_extra(package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"{package} is needed") as raised:
        check_plan(our_job(OURS["our llama"]), engine="llama.cpp")
    assert raised.value.ways_out == ('pip install "gpuwise[llamacpp]"',)


def test_a_model_larger_than_the_memory_is_not_made():
    with pytest.raises(UnsupportedError, match="llama3-70b is made in fp32 before it is written"):
        check_plan("llama3-70b", engine="llama.cpp", rate="1/h")
