"""Llama 2 and 3 (Touvron et al. 2023, Dubey et al. 2024): RMS norm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job.models.generation import LayerCache, causal_attention
from gpuwise.job.models.language import merge_heads, normal_init, split_heads


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes; the default is Llama 3 8B. `kv_heads` below `heads` shares keys and values between query heads."""

    vocabulary: int = 128_256
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5


# From the released params.json / config.json of each model.
LLAMA_SIZES = {
    "llama2-7b": LlamaConfig(vocabulary=32_000, kv_heads=32, hidden=11_008, rope_theta=10_000.0),
    "llama2-13b": LlamaConfig(
        vocabulary=32_000, width=5120, layers=40, heads=40, kv_heads=40, hidden=13_824, rope_theta=10_000.0
    ),
    "llama3-8b": LlamaConfig(),
    "llama3-70b": LlamaConfig(width=8192, layers=80, heads=64, hidden=28_672),
    "llama3-405b": LlamaConfig(width=16_384, layers=126, heads=128, hidden=53_248),
}


def rotary_table(seq_len: int, head_dim: int, *, theta: float, device: torch.device, start: int = 0) -> Tensor:
    """Cosines and sines of the angles of positions from `start` (0 by default) on (Su et al. 2021): (2, seq_len, head_dim / 2)
    in fp32."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    position = torch.arange(start, start + seq_len, device=device, dtype=torch.float32)
    angle = position[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turns each pair (first half, second half) of x (n, heads, seq, head_dim) by its position's angle."""
    cosine, sine = rotary.to(x.dtype).unbind()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


class LlamaAttention(nn.Module):
    """Causal self-attention; `kv_heads` groups of query heads share one key and value."""

    def __init__(self, *, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.head_dim = width // heads
        self.q = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(heads * self.head_dim, width, bias=False)

    def forward(self, x: Tensor, rotary: Tensor, cache: LayerCache | None = None) -> Tensor:
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.q, self.k, self.v))
        q, k = rotate(q, rotary), rotate(k, rotary)
        if cache is not None:
            k, v = cache.extended(k, v)
        return self.out(merge_heads(causal_attention(q, k, v)))


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, *, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    """(n, seq, width) in and out; `rotary` as from `rotary_table`; mlp is what follows attention."""

    def __init__(self, config: LlamaConfig, mlp: nn.Module):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = LlamaAttention(width=config.width, heads=config.heads, kv_heads=config.kv_heads)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = mlp

    def forward(self, x: Tensor, rotary: Tensor, cache: LayerCache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, cache)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary). The rotary table is computed for the length in use.

    With a cache, one LayerCache a layer, the tokens follow those in it, and the logits are the last token's, (n, vocabulary).
    """

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig | None = None):
        super().__init__()
        self.config = config = config or self.config_class()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(LlamaBlock(config, self.make_mlp()) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.init_weights()

    def make_mlp(self) -> nn.Module:
        return SwiGlu(width=self.config.width, hidden=self.config.hidden)

    def init_weights(self) -> None:
        normal_init(self, 0.02)

    def forward(self, tokens: Tensor, cache: Sequence[LayerCache] | None = None) -> Tensor:
        config, start = self.config, cache[0].tokens if cache else 0
        head_dim = config.width // config.heads
        rotary = rotary_table(tokens.shape[1], head_dim, theta=config.rope_theta, device=tokens.device, start=start)
        x = self.words(tokens)
        for number, block in enumerate(self.layers):
            x = block(x, rotary, cache[number] if cache else None)
        return self.head(self.norm(x[:, -1] if cache else x))
