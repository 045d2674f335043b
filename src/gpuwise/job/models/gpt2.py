"""GPT-2 (Radford et al. 2019); the default is the 124M size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job.models.generation import LayerCache, causal_attention
from gpuwise.job.models.language import merge_heads, normal_init, split_heads


@dataclass(frozen=True)
class Gpt2Config:
    vocabulary: int = 50_257
    positions: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12
    dropout: float = 0.1


GPT2_SIZES = {
    "gpt2": Gpt2Config(),
    "gpt2-medium": Gpt2Config(width=1024, layers=24, heads=16),
    "gpt2-large": Gpt2Config(width=1280, layers=36, heads=20),
    "gpt2-xl": Gpt2Config(width=1600, layers=48, heads=25),
}


class Gpt2Block(nn.Module):
    """Attention and perceptron, each behind its norm; (n, seq, width) in and out."""

    def __init__(self, config: Gpt2Config):
        super().__init__()
        width = config.width
        self.head_dim = width // config.heads
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        q, k, v = (split_heads(t, self.head_dim) for t in self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        else:
            y = causal_attention(q, *cache.extended(k, v))
        x = x + F.dropout(self.out(merge_heads(y)), self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class Gpt2(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary). The output matrix is the word embedding.

    With a cache, one LayerCache a layer, the tokens follow those in it, and the logits are the last token's, (n, vocabulary).
    """

    def __init__(self, config: Gpt2Config | None = None):
        super().__init__()
        self.config = config = config or Gpt2Config()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.layers = nn.ModuleList(Gpt2Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.words.weight
        self.init_weights()

    def init_weights(self) -> None:
        """Normal(0, 0.02); what is added to the residual stream is scaled down by the number of additions."""
        normal_init(self, 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.layers))

    def forward(self, tokens: Tensor, cache: Sequence[LayerCache] | None = None) -> Tensor:
        start = cache[0].tokens if cache else 0
        position = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = F.dropout(self.words(tokens) + self.positions(position), self.config.dropout, self.training)
        for number, block in enumerate(self.layers):
            x = block(x, cache[number] if cache else None)
        return self.head(self.norm(x[:, -1] if cache else x))
