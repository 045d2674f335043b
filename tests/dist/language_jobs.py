"""Tiny language models of gpuwise.job.models as jobs, for tests that train them on several ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpuwise.job import Job
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss, translation_batch
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.t5 import T5, T5Config

VOCABULARY, SEQ_LEN = 64, 16
_SIZES = {"vocabulary": VOCABULARY, "width": 32, "layers": 2, "heads": 4, "hidden": 64}


def _without_key_bias(model: Bert) -> Bert:
    """With untrained biases of keys: they shift all scores of a query alike, so that their gradients are rounding alone."""
    for block in model.layers:
        nn.init.constant_(block.k.bias, 0.01).requires_grad_(False)
    return model


MODELS: dict[str, Callable[[float], torch.nn.Module]] = {
    "llama": lambda dropout: Llama(LlamaConfig(kv_heads=2, **_SIZES)),
    "deep llama": lambda dropout: Llama(LlamaConfig(kv_heads=2, **{**_SIZES, "layers": 4})),
    "mixtral": lambda dropout: Mixtral(MixtralConfig(kv_heads=2, experts=4, **_SIZES)),
    "mixtral of eight experts": lambda dropout: Mixtral(MixtralConfig(kv_heads=2, experts=8, **_SIZES)),
    "gpt2": lambda dropout: Gpt2(Gpt2Config(VOCABULARY, SEQ_LEN, 32, 2, 4, dropout)),
    "bert": lambda dropout: _without_key_bias(Bert(BertConfig(VOCABULARY, SEQ_LEN, 2, 32, 2, 4, 64, dropout))),
    "t5": lambda dropout: T5(T5Config(VOCABULARY, 32, 2, 4, 8, 64, dropout=dropout)),
}
_BATCHES = {"bert": masked_word_batch, "t5": translation_batch}


def adamw(parameters: object) -> torch.optim.Optimizer:
    """With an epsilon above most gradients, which are small after these models' initialisation: rounding stays rounding."""
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-2)  # type: ignore[arg-type]


def language_job(name: str, *, dropout: float = 0.0, clip_norm: float | None = None) -> Job:
    """The job of one of MODELS, with batches that follow from a seed."""

    def batch(n: int, *, seed: int = 0) -> dict[str, torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _BATCHES.get(name, next_token_batch)(n, vocabulary=VOCABULARY, seq_len=SEQ_LEN)

    return Job(
        lambda: MODELS[name](dropout), batch, token_loss, optimizer=adamw, name=name, clip_norm=clip_norm, seq_len=SEQ_LEN
    )
