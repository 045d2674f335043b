"""The UNet of Stable Diffusion 1.5 (Rombach et al. 2022), conditioned on text; the default is the released size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job.models.language import merge_heads, split_heads


@dataclass(frozen=True)
class UnetConfig:
    """levels: channels from fine to coarse; every level but the last attends to the context."""

    latent_channels: int = 4
    levels: tuple[int, ...] = (320, 640, 1280, 1280)
    blocks_per_level: int = 2
    heads: int = 8
    context: int = 768
    groups: int = 32

    @property
    def time_width(self) -> int:
        return 4 * self.levels[0]


def time_embedding(steps: Tensor, width: int) -> Tensor:
    """Cosines and sines of each diffusion step (n,) at `width / 2` frequencies: (n, width)."""
    half = width // 2
    frequency = torch.exp(-math.log(10_000) / half * torch.arange(half, device=steps.device, dtype=torch.float32))
    angle = steps[:, None].float() * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class ResidualBlock(nn.Module):
    """Two convolutions with the diffusion step added in between; (n, inside, h, w) -> (n, outside, h, w)."""

    def __init__(self, inside: int, outside: int, config: UnetConfig):
        super().__init__()
        self.norm1 = nn.GroupNorm(config.groups, inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(config.time_width, outside)
        self.norm2 = nn.GroupNorm(config.groups, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.shortcut = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class UnetAttention(nn.Module):
    """UnetAttention of x (n, a, width) to source (n, b, source_width)."""

    def __init__(self, width: int, source_width: int, heads: int):
        super().__init__()
        self.head_dim = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(source_width, width, bias=False)
        self.v = nn.Linear(source_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = (split_heads(p(t), self.head_dim) for p, t in ((self.q, x), (self.k, source), (self.v, source)))
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class TransformerBlock(nn.Module):
    """Pixels attend to each other and to the context; (n, channels, h, w) in and out."""

    def __init__(self, channels: int, config: UnetConfig):
        super().__init__()
        self.norm = nn.GroupNorm(config.groups, channels, eps=1e-6)
        self.enter = nn.Conv2d(channels, channels, 1)
        self.self_norm, self.cross_norm, self.mlp_norm = (nn.LayerNorm(channels) for _ in range(3))
        self.self_attention = UnetAttention(channels, channels, config.heads)
        self.cross_attention = UnetAttention(channels, config.context, config.heads)
        self.up = nn.Linear(channels, 8 * channels)  # gated: half of it is the gate
        self.down = nn.Linear(4 * channels, channels)
        self.leave = nn.Conv2d(channels, channels, 1)

    def forward(self, image: Tensor, context: Tensor) -> Tensor:
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        y = self.self_norm(x)
        x = x + self.self_attention(y, y)
        x = x + self.cross_attention(self.cross_norm(x), context)
        value, gate = self.up(self.mlp_norm(x)).chunk(2, dim=-1)
        x = x + self.down(value * F.gelu(gate))
        return image + self.leave(x.transpose(1, 2).unflatten(2, image.shape[2:]))


class Level(nn.Module):
    """Residual blocks of one resolution, each followed by attention where the level has it."""

    def __init__(self, widths: list[tuple[int, int]], config: UnetConfig, *, attends: bool):
        super().__init__()
        self.residuals = nn.ModuleList(ResidualBlock(inside, outside, config) for inside, outside in widths)
        self.attentions = nn.ModuleList(TransformerBlock(outside, config) for _, outside in widths if attends)

    def step(self, index: int, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        x = self.residuals[index](x, time)
        return self.attentions[index](x, context) if len(self.attentions) else x


class Unet(nn.Module):
    """Noisy latents (n, 4, h, w), diffusion steps (n,), context (n, words, context) -> predicted noise (n, 4, h, w)."""

    def __init__(self, config: UnetConfig | None = None):
        super().__init__()
        self.config = config = config or UnetConfig()
        levels, last = config.levels, len(config.levels) - 1
        self.time_up = nn.Linear(levels[0], config.time_width)
        self.time_down = nn.Linear(config.time_width, config.time_width)
        self.enter = nn.Conv2d(config.latent_channels, levels[0], 3, padding=1)

        kept = [levels[0]]  # channels of every tensor that the way up takes back, newest last
        self.downs, self.shrinks = nn.ModuleList(), nn.ModuleList()
        for index, channels in enumerate(levels):
            widths = [(kept[-1], channels)] + [(channels, channels)] * (config.blocks_per_level - 1)
            self.downs.append(Level(widths, config, attends=index < last))
            kept += [channels] * config.blocks_per_level
            if index < last:
                self.shrinks.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                kept.append(channels)

        coarse = levels[-1]
        self.middle_residuals = nn.ModuleList(ResidualBlock(coarse, coarse, config) for _ in range(2))
        self.middle_attention = TransformerBlock(coarse, config)

        self.ups, self.grows, inside = nn.ModuleList(), nn.ModuleList(), coarse
        for index, channels in reversed(list(enumerate(levels))):
            widths = []
            for _ in range(config.blocks_per_level + 1):
                widths.append((inside + kept.pop(), channels))
                inside = channels
            self.ups.append(Level(widths, config, attends=index < last))
            if index:
                self.grows.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm = nn.GroupNorm(config.groups, levels[0])
        self.leave = nn.Conv2d(levels[0], config.latent_channels, 3, padding=1)

    def forward(self, latents: Tensor, steps: Tensor, context: Tensor) -> Tensor:
        time = time_embedding(steps, self.config.levels[0]).to(latents.dtype)
        time = self.time_down(F.silu(self.time_up(time)))
        x = self.enter(latents)
        kept = [x]
        for number, level in enumerate(cast("Iterable[Level]", self.downs)):
            for index in range(len(level.residuals)):
                x = level.step(index, x, time, context)
                kept.append(x)
            if number < len(self.shrinks):
                x = self.shrinks[number](x)
                kept.append(x)
        x = self.middle_residuals[0](x, time)
        x = self.middle_residuals[1](self.middle_attention(x, context), time)
        for number, level in enumerate(cast("Iterable[Level]", self.ups)):
            for index in range(len(level.residuals)):
                x = level.step(index, torch.cat([x, kept.pop()], dim=1), time, context)
            if number < len(self.grows):
                x = self.grows[number](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(F.silu(self.norm(x)))


def diffusion_batch(n: int, *, latent_size: int, context: int, words: int = 77) -> dict[str, Tensor]:
    """Random latents and noise (n, 4, s, s), steps (n,) in 0..999 and a text encoder's output (n, words, context)."""
    return {
        "latents": torch.randn(n, 4, latent_size, latent_size),
        "noise": torch.randn(n, 4, latent_size, latent_size),
        "steps": torch.randint(0, 1000, (n,)),
        "context": torch.randn(n, words, context),
    }


def diffusion_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared error of the predicted noise, on the scaled-linear noise schedule of Stable Diffusion."""
    latents, noise = batch["latents"], batch["noise"]
    beta = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=latents.device) ** 2
    signal = (1 - beta).cumprod(0)[batch["steps"]][:, None, None, None]
    noisy = signal.sqrt() * latents + (1 - signal).sqrt() * noise
    return F.mse_loss(model(noisy.to(latents.dtype), batch["steps"], batch["context"]).float(), noise.float())
