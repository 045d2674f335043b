"""Vision Transformer (Dosovitskiy et al. 2020); the default is ViT-B/16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job.models.language import merge_heads, split_heads


@dataclass(frozen=True)
class VitConfig:
    image_size: int = 224
    patch: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    classes: int = 1000


class VitBlock(nn.Module):
    """Attention and perceptron, each behind its norm; (n, patches, width) in and out."""

    def __init__(self, config: VitConfig):
        super().__init__()
        width = config.width
        self.head_dim = width // config.heads
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, config.hidden)
        self.down = nn.Linear(config.hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(t, self.head_dim) for t in self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
        x = x + self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Vit(nn.Module):
    """Images (n, 3, image_size, image_size) -> logits (n, classes)."""

    def __init__(self, config: VitConfig | None = None):
        super().__init__()
        self.config = config = config or VitConfig()
        patches = (config.image_size // config.patch) ** 2
        self.embed = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.positions = nn.Parameter(torch.empty(1, patches + 1, config.width))
        self.layers = nn.ModuleList(VitBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Default initialisation of every layer; class token zero and positions Normal(0, 0.02)."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm | nn.Conv2d):
                module.reset_parameters()
        nn.init.zeros_(self.class_token)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
