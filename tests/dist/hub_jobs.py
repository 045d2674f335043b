"""Tiny random models of Hugging Face's families as jobs; nothing is downloaded."""

from __future__ import annotations

from functools import partial

import torch
from tests.dist.language_jobs import adamw
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.job import Batch
from gpuwise.job.torchvision_cpu import make_importable

VOCABULARY, SEQ_LEN = 64, 16
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "use_cache": False,
    "initializer_range": 0.1,
}
_SHARED = {"num_key_value_heads": 2}
_WIDE_HEADS = {**_SHARED, "head_dim": 16}  # heads of another width than hidden_size / num_attention_heads
_EXPERTS = {**_SHARED, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
_NO_DROPOUT = {"attention_dropout": 0.0, "hidden_dropout": 0.0}

# The name of the family's classes in transformers, and what its tiny config says beyond _SIZES.
FAMILIES: dict[str, dict[str, object]] = {
    "Llama": _SHARED,
    "Qwen2": _SHARED,
    "Qwen3": _WIDE_HEADS,
    "Mistral": _SHARED,
    "Gemma": _WIDE_HEADS,
    "Gemma2": _WIDE_HEADS,
    "Phi": {},
    "Phi3": _SHARED,
    "GPTNeoX": _NO_DROPOUT,
    "Olmo2": _SHARED,
    "Cohere": _SHARED,
    "Granite": _SHARED,
    "Starcoder2": _SHARED,
    "Mixtral": {**_SHARED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Moe": {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32},
    "Qwen3Moe": {**_EXPERTS, "num_experts": 4},
    "Olmoe": {**_SHARED, "num_experts": 8, "num_experts_per_tok": 2},
    "GptOss": {**_WIDE_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}


def hub_model(family: str) -> nn.Module:
    make_importable()
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**_SIZES, **FAMILIES[family]})
    # transformers' Gemma 2 caps its scores, and GPT-OSS has sinks, which sdpa does not do.
    attention = "eager" if family in ("Gemma2", "GptOss") else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)  # beside zeros rounding is large
    return model


def hub_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def hub_batch(n: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Sequences that count up from random numbers."""
    starts = torch.randint(0, VOCABULARY, (n, 1), generator=torch.Generator().manual_seed(seed))
    tokens = (starts + torch.arange(SEQ_LEN)) % VOCABULARY
    return {"input_ids": tokens, "labels": tokens}


def hub_job(family: str, *, clip_norm: float | None = None) -> Job:
    """The job of one of FAMILIES, with batches that follow from a seed."""
    return Job(
        partial(hub_model, family), hub_batch, hub_loss, optimizer=adamw, name=family, clip_norm=clip_norm, seq_len=SEQ_LEN
    )
