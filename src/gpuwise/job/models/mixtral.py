"""Mixtral 8x7B (Jiang et al. 2024): Llama attention, and 2 of 8 experts for each token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpuwise.job.models.llama import Llama, LlamaConfig, SwiGlu


@dataclass(frozen=True)
class MixtralConfig(LlamaConfig):
    """Sizes; the default is Mixtral 8x7B. capacity_factor: room of an expert over an equal share of the tokens."""

    vocabulary: int = 32_000
    rope_theta: float = 1_000_000.0
    experts: int = 8
    experts_per_token: int = 2
    capacity_factor: float = 1.0


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
        position = torch.arange(capacity, device=x.device)
        choice = order[(start[:, None] + position).clamp(max=choices - 1)].flatten()
        taken = (position < count[:, None]).flatten()
        token = choice // config.experts_per_token

        outputs = self.run_experts(flat.index_select(0, token))
        share = (weight.index_select(0, choice) * taken)[:, None].to(outputs.dtype)
        return torch.zeros_like(flat).index_add(0, token, (outputs * share).to(flat.dtype)).view_as(x)

    def run_experts(self, rows: Tensor) -> Tensor:
        """Runs each expert on its rows: the same number for each expert, in the order of the experts. Expert parallelism
        replaces this method."""
        parts = rows.chunk(self.config.experts)
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])


class Mixtral(Llama):
    """Tokens (n, seq) -> logits (n, seq, vocabulary)."""

    config_class = MixtralConfig
    config: MixtralConfig

    def make_mlp(self) -> nn.Module:
        return MixtureOfExperts(self.config)
