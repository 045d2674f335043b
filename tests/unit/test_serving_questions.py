"""Questions to serve_plan without a sensible answer, or with two: each is refused with its reason, or answered once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from tests.one_recording import one_recording  # noqa: F401
from torch import nn

from gpuwise.api.serving import serve_plan
from gpuwise.errors import InputError, JobError, UnknownNameError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.generation import LayerCache, generate
from gpuwise.job.models.llama import Llama, LlamaConfig, rotary_table
from gpuwise.report.serving_choice import _model_words
from gpuwise.serving.launch import launched_model

CONFIG = LlamaConfig(vocabulary=512, width=128, layers=2, heads=4, kv_heads=2, hidden=256)


def writer(**changes: object) -> Job:
    """A small model that writes text."""
    return Job(
        **{
            "model": lambda: Llama(CONFIG),
            "batch": lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
            "loss": lambda model, batch: model(batch["tokens"]).mean(),
            "generate": generate,
            "name": "small",
            "context_length": 1024,
            **changes,
        }
    )


def answerer() -> Job:
    """A model of one forward pass."""
    return Job(
        model=lambda: nn.Linear(64, 8),
        batch=lambda n: {"x": torch.zeros(n, 64)},
        loss=lambda model, batch: model(batch["x"]).mean(),
        name="linear",
    )


def test_a_window_beyond_the_limit_is_refused_where_batches_do_not_fill():
    settings = {"on": "rtx-4090", "rate": "1/s", "slo": "latency=1s"}
    with pytest.raises(UnsupportedError, match="a window of 5 s leaves"):
        serve_plan(answerer(), window="5s", **settings)
    for fits in ({"window": "5s", "batch": 1}, {"window": "500ms"}):
        (row,) = serve_plan(answerer(), **fits, **settings).rows
        assert row.share_within >= 0.99
        assert row.latency["latency_s"].p99.value <= 1


def test_a_device_of_two_names_has_one_row():
    for job in (writer(), answerer()):
        plan = serve_plan(job, on="h100-sxm,h100-80gb-sxm,H100-SXM:1,h100-sxm:2", rate="1/s")
        assert sorted(row.device for row in plan.rows) == ["h100-80gb-sxm", "h100-80gb-sxm:2"]


def test_devices_that_share_no_head_name_a_number_that_does():
    (row, _) = sorted(serve_plan(writer(), on="rtx-4090:3,rtx-4090", rate="1/s").rows, key=lambda row: row.replicas)
    assert row.reason.endswith("heads of queries and keys (4 and 2) among 3 devices")
    assert row.way_out == "--on rtx-4090:2"


def test_an_engine_is_not_started_where_it_does_not_run():
    plan = serve_plan(writer(), on="m2-max", rate="1/s")
    assert plan.rows[0].replicas
    assert plan.rows[0].launch == ""
    assert any("vllm does not run on apple-m2-max" in words and "--engine llama.cpp" in words for words in plan.assumptions)
    (row,) = serve_plan(writer(), on="m2-max", rate="1/s", engine="llama.cpp").rows
    assert row.launch.startswith("llama-server")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prefix_hits": 1.0}, "from 0 to below 1"),
        ({"prefix_hits": -0.1}, "from 0 to below 1"),
        ({"slo": "share=0.9"}, "names none"),
        ({"slo": "tpot=1s,tpot=2s"}, "twice"),
        ({"engine": "pytorch"}, "runs single forward passes"),
        ({"rate": "1e30/s"}, "a billion a second"),
    ],
)
def test_senseless_settings_are_refused_before_any_work(settings: dict[str, object], words: str):
    untouched = writer(generate=lambda *_: pytest.fail("recorded"))
    with pytest.raises(InputError, match=words):
        serve_plan(untouched, **{"on": "rtx-4090", "rate": "1/s", **settings})


def test_unknown_names_end_with_a_command_that_lists_them():
    for settings in ({"engine": "vlm"}, {"weights": "int5"}, {"cache": "fp9"}):
        with pytest.raises(UnknownNameError) as error:
            serve_plan(writer(), on="rtx-4090", rate="1/s", **settings)
        assert error.value.ways_out[-1] == "list all with `gpuwise serve-plan --help`"


def test_a_cache_without_tensors_is_no_cache():
    forgets = writer(generate=lambda model, tokens, cache: (model(tokens), None))
    with pytest.raises(JobError, match="returns a cache without tensors"):
        serve_plan(forgets, on="rtx-4090", rate="1/s")


def test_a_generate_that_fails_is_named():
    with pytest.raises(JobError, match="division by zero") as error:
        serve_plan(writer(generate=lambda model, tokens, cache: 1 / 0), on="rtx-4090", rate="1/s")
    assert "Job.generate" in str(error.value)


def test_logits_without_a_cache_are_no_answer():
    with pytest.raises(JobError, match=r"returns a Tensor, not \(logits, cache\)"):
        serve_plan(writer(generate=lambda *arguments: generate(*arguments)[0]), on="rtx-4090", rate="1/s")


class AllLogits(Llama):
    """Makes the logits of every token."""

    def forward(self, tokens: torch.Tensor, cache: Sequence[LayerCache] | None = None) -> torch.Tensor:
        start, head_dim = cache[0].tokens if cache else 0, CONFIG.width // CONFIG.heads
        rotary = rotary_table(tokens.shape[1], head_dim, theta=CONFIG.rope_theta, device=tokens.device, start=start)
        x = self.words(tokens)
        for number, block in enumerate(self.layers):
            x = block(x, rotary, cache[number] if cache else None)
        return self.head(self.norm(x))


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_head_over_all_tokens_of_a_prompt_counts_once_a_sequence(last: bool):
    """As engines run it: the natural way to write it has the price of the one that slices before the head."""

    def all_tokens(model: nn.Module, tokens: torch.Tensor, cache: object) -> tuple[torch.Tensor, object]:
        logits, cache = generate(model, tokens, cache)
        return logits[:, -1] if last else logits, cache

    usual = serve_plan(writer(), on="rtx-4090", rate="1/s").rows[0]
    whole = serve_plan(writer(model=lambda: AllLogits(CONFIG), generate=all_tokens), on="rtx-4090", rate="1/s").rows[0]
    assert whole.saturation_rate == pytest.approx(usual.saturation_rate, rel=0.05)
    for name in ("ttft_s", "tpot_s"):
        assert whole.latency[name].p50.value == pytest.approx(usual.latency[name].p50.value, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "differs"),
    [({"input": 100, "output": 50}, False), ({"input": 512, "output": 256}, True), ({"output": 1}, True)],
)
def test_means_that_the_context_or_whole_tokens_change_are_named(settings: dict[str, int], differs: bool):
    plan = serve_plan(writer(), on="rtx-4090", rate="1/s", **settings)
    notes = [note for note in plan.assumption_notes if note.kind == "means-as-drawn"]
    assert len(notes) == differs


@pytest.mark.parametrize(
    ("engine", "weights", "narrow"),
    [
        ("vllm", "fp8", False),
        ("vllm", "nf4", False),
        ("vllm", "int4", True),
        ("vllm-2024", "int8", True),
        ("sglang", "fp8", False),
        ("sglang", "nvfp4", True),
        ("tensorrt-llm", "fp8", True),
        ("vllm", "bf16", False),
        ("llama.cpp", "gguf-q4_k_m", False),
    ],
)
def test_a_command_names_no_weights_of_16_bits_where_others_were_planned(engine: str, weights: str, narrow: bool):
    """vLLM and SGLang make fp8 (vLLM also nf4) of 16 bits as they start; every other format is that of the checkpoint."""
    name = launched_model("llama3-8b", engine=engine, weights=weights)
    assert name == ("MODEL" if narrow else "meta-llama/Meta-Llama-3-8B")
    assert launched_model("hf:org/model-awq", engine=engine, weights=weights) == "org/model-awq"
    forecast = SimpleNamespace(job="llama3-8b", model="meta-llama/Meta-Llama-3-8B", engine=engine, weights=weights)
    assert (f"MODEL: weights of meta-llama/Meta-Llama-3-8B in {weights}" in _model_words(forecast)) == narrow


def test_slots_of_llama_cpp_hold_the_longest_request():
    """Its context is that of all slots together. A server that answers one request at a time answers one in its latency."""
    settings = {"on": "rtx-3060-12gb", "engine": "llama.cpp", "weights": "gguf-q8_0"}
    (row,) = serve_plan("llama3-8b", rate="0.02/s", input=7000, output=500, spread=0, **settings).rows
    words = row.launch.split()
    context, slots = (int(words[words.index(flag) + 1]) for flag in ("--ctx-size", "--parallel"))
    assert context // slots >= 7500
    assert context <= row.cache_tokens
    assert row.saturation_rate >= 1 / row.alone_latency_s


@pytest.mark.slow
def test_more_users_than_the_cache_holds_do_not_slow_the_others_down():
    """39,000 tokens hold five requests of 7,500: the sixth waits."""
    settings = {"on": "rtx-4090", "input": 7000, "output": 500, "spread": 0}
    five, six = (serve_plan("llama3-8b", concurrency=users, **settings).rows[0] for users in (5, 6))
    assert 5 * 7500 <= six.cache_tokens < 6 * 7500
    assert six.reached_per_s >= 0.99 * five.reached_per_s
