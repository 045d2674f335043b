"""Jobs that no preset is: a deep chain with checkpoints of its own, and GPT-3."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpuwise.job import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss

CHAIN_WIDTH = 256


class Chain(nn.Module):
    """n equal layers; `segments` of them keep only their input and are computed again in backward (0: none is)."""

    def __init__(self, layers: int, segments: int):
        super().__init__()
        self.segments = segments
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(CHAIN_WIDTH, CHAIN_WIDTH), nn.GELU()) for _ in range(layers))

    def part(self, first: int, last: int, x: Tensor) -> Tensor:
        for layer in self.layers[first:last]:
            x = layer(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        length = len(self.layers) // max(1, self.segments)
        for first in range(0, len(self.layers), length):
            part = partial(self.part, first, first + length)
            x = checkpoint(part, x, use_reentrant=False) if self.segments else part(x)
        return x


def _random_rows(n: int) -> dict[str, Tensor]:
    return {"x": torch.randn(n, CHAIN_WIDTH)}


def _mean_square(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    answer: Tensor = model(batch["x"]).square().mean()
    return answer


def chain(layers: int, segments: int) -> Callable[[], Job]:
    """A function that makes the job, named as it is shown."""

    def make() -> Job:
        return Job(partial(Chain, layers, segments), _random_rows, _mean_square, optimizer="sgd", name=make.__name__)

    make.__name__ = f"chain_of_{layers}" + (f"_in_{segments}_segments" if segments else "")
    return make


@cache
def named(name: str) -> Callable[[], Job]:
    """A function of this module, or `chain`'s of such a name."""
    parts = re.fullmatch(r"chain_of_(\d+)(?:_in_(\d+)_segments)?", name)
    return chain(int(parts[1]), int(parts[2] or 0)) if parts else globals()[name]


def gpt3() -> Job:
    """GPT-3 175B of Brown et al. 2020, table 2.1; the vocabulary is padded to 51,200 as in Narayanan et al. 2021."""
    return _gpt("gpt3-175b", Gpt2Config(vocabulary=51_200, positions=2048, width=12_288, layers=96, heads=96, dropout=0.0))


def small_gpt() -> Job:
    """Four layers of GPT-2's shape, for a machine without a GPU."""
    return _gpt("gpt-small", Gpt2Config(vocabulary=2048, positions=256, width=384, layers=4, heads=6, dropout=0.0))


def _gpt(name: str, config: Gpt2Config) -> Job:
    """Next-token training on sequences as long as the model's positions."""
    return Job(
        partial(Gpt2, config),
        partial(next_token_batch, vocabulary=config.vocabulary, seq_len=config.positions),
        token_loss,
        name=name,
        sample_unit="token",
        tokens_per_sample=config.positions,
        seq_len=config.positions,
    )
