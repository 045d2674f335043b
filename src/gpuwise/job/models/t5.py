"""T5 v1.0 (Raffel et al. 2019): encoder and decoder with relative position biases; the default is the base size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job.models.language import merge_heads, split_heads


@dataclass(frozen=True)
class T5Config:
    vocabulary: int = 32_128
    width: int = 768
    layers: int = 12
    heads: int = 12
    head_dim: int = 64
    hidden: int = 3072
    buckets: int = 32
    max_distance: int = 128
    dropout: float = 0.1


def position_buckets(seq_len: int, *, both_ways: bool, config: T5Config, device: torch.device) -> Tensor:
    """Bucket of each (query, key) distance, (seq_len, seq_len) int64: exact when near, logarithmic when far."""
    position = torch.arange(seq_len, device=device)
    ahead = position[None, :] - position[:, None]
    buckets = config.buckets // 2 if both_ways else config.buckets
    offset = (ahead > 0).long() * buckets if both_ways else torch.zeros_like(ahead)
    distance = ahead.abs() if both_ways else (-ahead).clamp(min=0)
    exact = buckets // 2
    scale = (buckets - exact) / math.log(config.max_distance / exact)
    far = exact + (torch.log(distance.clamp(min=1).float() / exact) * scale).long()
    return offset + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


class T5Attention(nn.Module):
    """T5Attention without scaling (it is in the initial weights); `bias` is added to the scores."""

    def __init__(self, config: T5Config):
        super().__init__()
        inner = config.heads * config.head_dim
        self.head_dim, self.dropout = config.head_dim, config.dropout
        self.q, self.k, self.v = (nn.Linear(config.width, inner, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, config.width, bias=False)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (split_heads(p(t), self.head_dim) for p, t in ((self.q, x), (self.k, source), (self.v, source)))
        mask = None if bias is None else bias.to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=1.0)
        return self.out(merge_heads(y))


class T5Block(nn.Module):
    """Self-attention, in a decoder also attention to the encoder's output, and a perceptron; each behind its norm."""

    def __init__(self, config: T5Config, *, decoder: bool):
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = T5Attention(config)
        self.cross_norm = nn.RMSNorm(config.width, eps=1e-6) if decoder else None
        self.cross = T5Attention(config) if decoder else None
        self.mlp_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None = None) -> Tensor:
        y = self.attention_norm(x)
        x = x + self._drop(self.attention(y, y, bias))
        if self.cross is not None and self.cross_norm is not None:
            x = x + self._drop(self.cross(self.cross_norm(x), encoded, None))
        return x + self._drop(self.down(self._drop(F.relu(self.up(self.mlp_norm(x))))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Stack(nn.Module):
    """Encoder or decoder: blocks that share one table of relative position biases."""

    def __init__(self, config: T5Config, *, decoder: bool):
        super().__init__()
        self.config, self.decoder = config, decoder
        self.position_bias = nn.Embedding(config.buckets, config.heads)
        self.layers = nn.ModuleList(T5Block(config, decoder=decoder) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)

    def bias(self, seq_len: int, device: torch.device) -> Tensor:
        """(1, heads, seq_len, seq_len), minus infinity where a decoder would look ahead."""
        buckets = position_buckets(seq_len, both_ways=not self.decoder, config=self.config, device=device)
        # Contiguous: attention's fused kernels take no bias whose rows are strided.
        bias = self.position_bias(buckets).permute(2, 0, 1)[None].contiguous()
        if self.decoder:
            ahead = torch.ones(seq_len, seq_len, dtype=torch.bool, device=device).triu(1)
            bias = bias.masked_fill(ahead, float("-inf"))
        return bias

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        bias = self.bias(x.shape[1], x.device)
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.layers:
            x = block(x, bias, encoded)
        return F.dropout(self.norm(x), self.config.dropout, self.training)


class T5(nn.Module):
    """Tokens (n, seq) and decoder inputs (n, seq) -> logits (n, seq, vocabulary); one matrix embeds and predicts."""

    def __init__(self, config: T5Config | None = None):
        super().__init__()
        self.config = config = config or T5Config()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.encoder = Stack(config, decoder=False)
        self.decoder = Stack(config, decoder=True)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.words.weight
        self.init_weights()

    def init_weights(self) -> None:
        """Fan-in scaled normals; queries smaller still, as attention does not divide by sqrt(head_dim)."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and name != "head":
                shrink = self.config.head_dim if name.endswith(".q") else 1
                nn.init.normal_(module.weight, std=(module.in_features * shrink) ** -0.5)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=1.0 if module is self.words else self.config.width**-0.5)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        encoded = self.encoder(self.words(tokens))
        decoded = self.decoder(self.words(targets), encoded)
        return self.head(decoded * self.config.width**-0.5)
