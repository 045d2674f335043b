"""Language models that write one token at a time, for `measure` to observe: products of a few rows with large matrices, and
attention of one token to a cache. No training step has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.models.generation import LayerCache
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.measure.networks import ObservedNetwork


class NextToken(nn.Module):
    """Tokens (n, 1) -> logits (n, vocabulary): one more token of each sequence, behind `past` tokens in the cache."""

    cached: Tensor

    def __init__(self, model: Gpt2 | Llama, past: int):
        super().__init__()
        self.model = model
        config = model.config
        heads = config.kv_heads if isinstance(config, LlamaConfig) else config.heads
        cached = torch.randn(2, config.layers, 1, heads, past, config.width // config.heads)
        self.register_buffer("cached", cached, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        keys, values = self.cached.expand(-1, -1, len(tokens), -1, -1, -1)
        logits: Tensor = self.model(tokens, [LayerCache(*layer) for layer in zip(keys, values, strict=True)])
        return logits


def last_tokens(n: int, *, vocabulary: int) -> dict[str, Tensor]:
    """A batch of n random tokens, each (1,)."""
    return {"tokens": torch.randint(vocabulary, (n, 1))}


def mean_logit(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Stands for a loss, since a pass that writes has none."""
    logits: Tensor = model(batch["tokens"])
    return logits.mean()


def _writer(model: Callable[[], Gpt2 | Llama], past: int) -> nn.Module:
    return NextToken(model(), past)


def _llama(config: LlamaConfig, past: int) -> Job:
    model = partial(_writer, partial(Llama, config), past)
    return Job(model, partial(last_tokens, vocabulary=config.vocabulary), mean_logit)


def _gpt2(config: Gpt2Config, past: int) -> Job:
    model = partial(_writer, partial(Gpt2, config), past)
    return Job(model, partial(last_tokens, vocabulary=config.vocabulary), mean_logit)


# Sequences that write together are those of a few users, and as many on every machine.
WRITING: tuple[ObservedNetwork, ...] = (
    ObservedNetwork("Llama, width 768, writes", _llama(LlamaConfig(12_000, 768, 3, 12, 4, 2048), 200), 1),
    ObservedNetwork("GPT-2, width 640, writes", _gpt2(Gpt2Config(9_000, 512, 640, 4, 10), 60), 1),
    ObservedNetwork("Llama, width 1792, writes", _llama(LlamaConfig(16_000, 1792, 1, 14, 14, 4864), 30), 1),
    ObservedNetwork("Llama, width 384, 2 write", _llama(LlamaConfig(5_000, 384, 6, 6, 2, 1024), 500), 2),
    ObservedNetwork("GPT-2, width 1152, 4 write", _gpt2(Gpt2Config(6_000, 512, 1152, 2, 18), 120), 4),
    ObservedNetwork("Llama, width 1024, 8 write", _llama(LlamaConfig(8_000, 1024, 2, 16, 4, 2816), 90), 8),
    ObservedNetwork("GPT-2, width 448, 16 write", _gpt2(Gpt2Config(4_000, 512, 448, 4, 7), 250), 16),
)
