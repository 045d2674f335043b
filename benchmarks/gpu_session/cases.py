"""The steps that are forecast and then run: models, settings and batches of parts 1 and 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from benchmarks.support.memory_cases import VOCABULARY, Encoder, Lstm
from gpuwise.job import Job, resolve
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, table_batch
from gpuwise.strategy import Strategy
from gpuwise.tracing.kernels.instruction_sets import multiplies_bf16

# The shape of Llama 3.2 1B (its config.json), with a head of its own.
LLAMA_1B = LlamaConfig(width=2048, layers=16, heads=32, kv_heads=8, hidden=8192)
ATTENTION = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")  # of torch.nn.attention.SDPBackend


@dataclass(frozen=True)
class StepCase:
    """A step. job: makes it; attention: the only kernel that scaled_dot_product_attention may take, "" for PyTorch's choice."""

    name: str
    job: Callable[[], Job]
    strategy: Strategy
    attention: str = ""


def language_job(model: Callable[[], nn.Module], batch: Callable[..., Any], name: str, *, vocabulary: int, seq_len: int) -> Job:
    return Job(
        model,
        partial(batch, vocabulary=vocabulary, seq_len=seq_len),
        token_loss,
        name=name,
        sample_unit="token",
        tokens_per_sample=seq_len,
        seq_len=seq_len,
    )


def llama(config: LlamaConfig, seq_len: int, name: str = "llama-1b") -> Job:
    return language_job(lambda: Llama(config), next_token_batch, name, vocabulary=config.vocabulary, seq_len=seq_len)


def _preset(
    name: str,
    settings: dict[str, Any],
    *,
    seq_len: int | None = None,
    image_size: int | None = None,
    attention: str = "",
    words: str = "",
) -> StepCase:
    sizes = {key: value for key, value in (("seq_len", seq_len), ("image_size", image_size)) if value is not None}
    return StepCase(
        words or _named(name, settings, attention), partial(resolve, name, **sizes), Strategy(**settings), attention
    )


def _named(name: str, settings: dict[str, Any], attention: str) -> str:
    words = [
        f"{key} {value}" if not isinstance(value, bool) else key
        for key, value in settings.items()
        if key not in ("precision", "micro_batch") and value
    ]
    return ", ".join(
        [
            name,
            settings.get("precision", "fp32"),
            f"{settings['micro_batch']} samples",
            *[word.replace("_", "-") for word in words],
            *([attention.lower()] if attention else []),
        ]
    )


def _own(name: str, job: Callable[[], Job], **settings: Any) -> StepCase:
    return StepCase(_named(name, settings, ""), job, Strategy(**settings))


def _encoder(attention: str) -> Job:
    model = partial(Encoder, attention, width=1024, heads=16, layers=12)
    return language_job(model, masked_word_batch, "encoder", vocabulary=VOCABULARY, seq_len=512)


def _mixtral() -> Job:
    config = MixtralConfig(vocabulary=32_000, width=1024, layers=8, heads=16, kv_heads=8, hidden=3584, experts=8)
    return language_job(lambda: Mixtral(config), next_token_batch, "mixtral", vocabulary=32_000, seq_len=1024)


def _lstm() -> Job:
    return language_job(partial(Lstm, 1024), next_token_batch, "lstm", vocabulary=VOCABULARY, seq_len=256)


def memory_cases() -> list[StepCase]:
    """Part 1: every precision, optimizer, recompute and kernel at least once; one step near 141 GB of memory, one beyond."""
    llama_1b = partial(llama, LLAMA_1B, 2048)
    amp, half = {"precision": "amp-bf16"}, {"precision": "bf16"}
    gpt2, resnet = {**amp, "micro_batch": 16}, {**amp, "micro_batch": 256, "optimizer": "momentum"}
    medium, large = {**amp, "micro_batch": 8}, {**half, "micro_batch": 2, "recompute": "full"}
    return [
        _preset("tabular-mlp", {"precision": "fp32", "micro_batch": 8192}),
        _preset("alexnet", {"precision": "fp32", "micro_batch": 256, "optimizer": "momentum"}),
        _preset("resnet50", {"precision": "fp32", "micro_batch": 64, "optimizer": "momentum"}),
        _preset("resnet50", resnet),
        _preset("resnet50", {**resnet, "channels_last": True}),
        _preset("vit-b16", {**amp, "micro_batch": 128}),
        _preset("vit-b16", {**amp, "micro_batch": 128, "recompute": "full"}),
        _preset("bert-large", {"precision": "fp32", "micro_batch": 16}),
        _preset("gpt2", {"precision": "fp32", "micro_batch": 8}),
        _preset("gpt2", gpt2),
        _preset("gpt2", {**gpt2, "accumulation": 2}),
        _preset("gpt2", {**gpt2, "recompute": "full"}),
        _preset("gpt2", {**gpt2, "recompute": "selective"}),
        _preset("gpt2", {**gpt2, "optimizer_kernels": "foreach"}),
        *[_preset("gpt2-medium", medium, attention=kernel) for kernel in ATTENTION[1:]],
        _own("encoder, attention written out", partial(_encoder, "eager"), **medium),
        _own("encoder, masked", partial(_encoder, "masked"), **medium),
        _preset("t5-base", {**amp, "micro_batch": 16}),
        _preset("sd15-unet", {**amp, "micro_batch": 8}),
        _own("lstm", _lstm, **amp, micro_batch=64),
        _own("mixtral", _mixtral, **amp, micro_batch=4),
        _own("llama-1b", llama_1b, **half, micro_batch=4, optimizer_kernels="foreach"),
        _own("llama-1b", llama_1b, **half, micro_batch=4, optimizer_in_backward=True),
        _own("llama-1b", llama_1b, **amp, micro_batch=4, optimizer="muon"),
        _own("llama-1b", llama_1b, **half, micro_batch=4, optimizer="adafactor"),
        _own("llama-1b", llama_1b, **half, micro_batch=4, offload="optimizer"),
        _preset("llama3-8b", {**half, "micro_batch": 2, "adapter": "lora"}, seq_len=4096),
        _preset("llama3-8b", large, seq_len=4096),
        _preset("llama3-8b", {**large, **amp, "micro_batch": 1}, seq_len=4096),
        _preset("llama3-8b", {"precision": "fp32", "micro_batch": 8}, seq_len=4096),
        _preset("gpt2", {**gpt2, "compile": True}),
        _preset("resnet50", {**resnet, "precision": "amp-fp16", "channels_last": True, "compile": True}),
        _preset("llama3-8b", {**half, "micro_batch": 2, "adapter": "qlora", "recompute": "full"}, seq_len=4096),
        _own("llama-1b", llama_1b, **half, micro_batch=4, optimizer="adamw-8bit"),
        _own("llama-1b", llama_1b, precision="fp8", micro_batch=4),
    ]


def time_cases() -> list[StepCase]:
    """Part 2: from steps that wait for the host to steps that fill the device."""
    amp, half = {"precision": "amp-bf16"}, {"precision": "bf16"}
    layers = LlamaConfig(layers=4)
    return [
        _preset("tabular-mlp", {"precision": "fp32", "micro_batch": 32}),
        _preset("tabular-mlp", {"precision": "fp32", "micro_batch": 65_536}),
        _preset("gpt2", {**amp, "micro_batch": 1}, seq_len=128, words="gpt2, amp-bf16, 1 x 128 tokens"),
        _preset("bert-base", {**amp, "micro_batch": 4}, seq_len=128, words="bert-base, amp-bf16, 4 x 128 tokens"),
        _own("lstm", _lstm, **amp, micro_batch=64),
        _preset("dlrm", {"precision": "fp32", "micro_batch": 8192, "optimizer": "sgd"}),
        _preset("resnet50", {**amp, "micro_batch": 8, "optimizer": "momentum"}),
        _preset("resnet50", {**amp, "micro_batch": 256, "optimizer": "momentum", "channels_last": True}),
        _preset("alexnet", {"precision": "tf32", "micro_batch": 256, "optimizer": "momentum"}),
        _preset("vit-b16", {**amp, "micro_batch": 128}),
        _preset("gpt2", {"precision": "fp32", "micro_batch": 8}),
        _preset("gpt2", {"precision": "tf32", "micro_batch": 8}),
        _preset("gpt2", {**amp, "micro_batch": 16}),
        _preset("gpt2", {**amp, "micro_batch": 16, "compile": True}),
        _preset("gpt2", {**amp, "micro_batch": 32, "mode": "infer"}),
        _preset("bert-large", {**amp, "micro_batch": 32}),
        _preset("sd15-unet", {**amp, "micro_batch": 8}),
        _own("llama-1b", partial(llama, LLAMA_1B, 2048), **half, micro_batch=4),
        _own("four layers of 8B", partial(llama, layers, 4096, "four layers of 8B"), **half, micro_batch=4),
        _preset("llama3-8b", {**half, "micro_batch": 1, "recompute": "full"}, seq_len=4096),
    ]


def toy_cases() -> list[StepCase]:
    """Small enough for a CPU's tests. A CPU without bfloat16 instructions has no forecast in amp-bf16."""
    table = MlpConfig(features=64, hidden=(256, 128), classes=10)
    mlp = partial(Job, lambda: Mlp(table), partial(table_batch, features=64, classes=10), class_loss, name="mlp")
    sizes = Gpt2Config(vocabulary=512, width=64, layers=2, heads=2)
    gpt = partial(language_job, lambda: Gpt2(sizes), next_token_batch, "gpt", vocabulary=512, seq_len=32)
    return [
        _own("mlp", mlp, precision="fp32", micro_batch=64),
        _own("gpt", gpt, precision="fp32", micro_batch=4),
        _own("gpt", gpt, precision="amp-bf16" if multiplies_bf16() else "fp32", micro_batch=4, recompute="full"),
    ]
