"""Mixtral 8x7B (Jiang et al. 2024): Llama attention, and 2 of 8 experts for each token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpuwise.job.models.language import normal_init
from gpuwise.job.models.llama import Attention, SwiGlu, rotary_table


@dataclass(frozen=True)
class MixtralConfig:
    """Sizes; the default is Mixtral 8x7B. capacity_factor: room of an expert over an equal share of the tokens."""

    vocabulary: int = 32_000
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    experts: int = 8
    experts_per_token: int = 2
    capacity_factor: float = 1.0
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-5


class MixtureOfExperts(nn.Module):
    """Each token goes to its best experts; every expert processes a fixed number of tokens, so that no shape depends on
    data. A token that finds its expert full passes by it (as in Switch Transformer, Fedus et al. 2021)."""

    def __init__(self, config: MixtralConfig):
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.experts = nn.ModuleList(SwiGlu(width=config.width, hidden=config.hidden) for _ in range(config.experts))

    def forward(self, x: Tensor) -> Tensor:
        config, flat = self.config, x.flatten(0, -2)
        choices = flat.shape[0] * config.experts_per_token
        capacity = math.ceil(choices * config.capacity_factor / config.experts)

        weight, chosen = self.router(flat).float().softmax(-1).topk(config.experts_per_token, dim=-1)
        weight = (weight / weight.sum(-1, keepdim=True)).flatten()
        chosen = chosen.flatten()  # expert of each choice; choice c belongs to token c // experts_per_token

        # Choices sorted by expert; expert e's queue is the run of count[e] choices from start[e].
        order = chosen.argsort(stable=True)
        count = (chosen[:, None] == torch.arange(config.experts, device=x.device)).sum(0)
        start = count.cumsum(0) - count
        place = torch.arange(capacity, device=x.device)
        choice = order[(start[:, None] + place).clamp(max=choices - 1)].flatten()
        taken = (place < count[:, None]).flatten()
        token = choice // config.experts_per_token

        inputs = flat.index_select(0, token).chunk(config.experts)
        outputs = torch.cat([expert(part) for expert, part in zip(self.experts, inputs, strict=True)])
        share = (weight.index_select(0, choice) * taken)[:, None].to(outputs.dtype)
        return torch.zeros_like(flat).index_add(0, token, (outputs * share).to(flat.dtype)).view_as(x)


class Block(nn.Module):
    """(n, seq, width) in and out; `rotary` as from `rotary_table`."""

    def __init__(self, config: MixtralConfig):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(width=config.width, heads=config.heads, kv_heads=config.kv_heads)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mixture = MixtureOfExperts(config)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.mixture(self.mlp_norm(x))


class Mixtral(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary)."""

    def __init__(self, config: MixtralConfig | None = None):
        super().__init__()
        self.config = config = config or MixtralConfig()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        normal_init(self, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        config = self.config
        rotary = rotary_table(tokens.shape[1], config.width // config.heads, theta=config.rope_theta,
                              device=tokens.device)  # fmt: skip
        x = self.words(tokens)
        for block in self.layers:
            x = block(x, rotary)
        return self.head(self.norm(x))
