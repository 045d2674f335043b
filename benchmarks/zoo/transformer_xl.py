"""Transformer-XL (Dai et al. 2019) as NVIDIA's DeepLearningExamples train it on WikiText-103, with the whole softmax."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from benchmarks.zoo.master_adam import MasterAdam
from gpuwise.job import Job


@dataclass(frozen=True)
class TransformerXlConfig:
    """The default is the base size; words: of WikiText-103."""

    words: int = 267_735
    layers: int = 16
    width: int = 512
    heads: int = 8
    inner: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0


TRANSFORMER_XL = {
    "base": TransformerXlConfig(),
    "large": TransformerXlConfig(layers=18, width=1024, heads=16, inner=4096, dropout=0.2, attention_dropout=0.2),
}


class RelativeAttention(nn.Module):
    """Attention to the segment before and this one, by content and by distance (section 3.3 of the paper)."""

    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.heads, self.head_dim = config.heads, config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.distance = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.dropout, self.attention_dropout = nn.Dropout(config.dropout), nn.Dropout(config.attention_dropout)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, memory: Tensor, distances: Tensor, biases: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x: (new, n, width); memory: (old, n, width); distances: (old + new, 1, width); biases: (heads, head size) each."""
        new, n, width = x.shape
        q, k, v = self.qkv(torch.cat([memory, x])).chunk(3, dim=-1)
        q = q[-new:].reshape(new, n, self.heads, self.head_dim)
        k, v = (y.reshape(-1, n, self.heads, self.head_dim) for y in (k, v))
        r = self.distance(distances).reshape(-1, self.heads, self.head_dim)
        content = torch.einsum("ibnd,jbnd->bnij", q + biases[0], k)
        position = _shifted(torch.einsum("ibnd,jnd->bnij", q + biases[1], r))
        scores = ((content + position) * self.head_dim**-0.5).masked_fill_(mask, -float("inf"))
        weights = self.attention_dropout(F.softmax(scores, dim=-1))
        mixed = torch.einsum("bnij,jbnd->ibnd", weights, v).reshape(new, n, width)
        return self.norm(x + self.dropout(self.out(mixed)))


def _shifted(scores: Tensor) -> Tensor:
    """Scores by distance, (n, heads, new, all), moved so that column j belongs to key j: appendix B of the paper."""
    n, heads, new, known = scores.shape
    padded = F.pad(scores, (1, 0)).view(n, heads, known + 1, new)
    return padded[:, :, 1:].reshape(n, heads, new, known)


class Layer(nn.Module):
    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.attention = RelativeAttention(config)
        self.inner = nn.Sequential(
            nn.Linear(config.width, config.inner),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.inner, config.width),
            nn.Dropout(config.dropout),
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, *context: object) -> Tensor:
        x = self.attention(x, *context)
        return self.norm(x + self.inner(x))


class TransformerXl(nn.Module):
    """tokens (n, new), memory (n, layers, old, width) -> logits (new × n, words). One table serves words and outputs."""

    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.words, config.width)
        self.word_bias = nn.Parameter(torch.zeros(config.words))
        self.biases = nn.ParameterList(torch.zeros(config.heads, config.width // config.heads) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.register_buffer("frequencies", 1e4 ** -(torch.arange(0, config.width, 2) / config.width))

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x = self.dropout(self.words(tokens.t()) * self.config.width**0.5)
        old, new = memory.shape[2], x.shape[0]
        far = torch.arange(old + new - 1, -1, -1, device=x.device, dtype=self.frequencies.dtype)
        angles = torch.outer(far, self.frequencies)
        distances = self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None].to(x.dtype))
        mask = torch.ones(new, old + new, device=x.device, dtype=x.dtype).triu(1 + old).bool()
        hidden = []
        for layer, before in zip(self.layers, memory.permute(1, 2, 0, 3), strict=True):
            hidden.append(x.detach())
            x = layer(x, before.to(x.dtype), distances, tuple(self.biases), mask)
        torch.stack(hidden)  # becomes the next segment's memory
        return F.linear(self.dropout(x).flatten(0, 1), self.words.weight, self.word_bias)


def transformer_xl_batch(n: int, *, config: TransformerXlConfig, seq_len: int) -> dict[str, Tensor]:
    """Tokens and labels (n, seq_len), and the last segment's hidden states (n, layers, seq_len, width)."""
    tokens = torch.randint(0, config.words, (n, seq_len + 1))
    memory = torch.randn(n, config.layers, seq_len, config.width)
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous(), "memory": memory}


def transformer_xl_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean of -log p of each next word over the whole vocabulary."""
    logits = model(batch["tokens"], batch["memory"])
    return F.nll_loss(F.log_softmax(logits, dim=-1), batch["labels"].t().flatten())


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """transformer_xl-base or -large on segments of seq_len words."""
    config, seq_len = TRANSFORMER_XL[name.removeprefix("transformer_xl-")], sizes["seq_len"]
    return Job(
        partial(TransformerXl, config),
        partial(transformer_xl_batch, config=config, seq_len=seq_len),
        transformer_xl_loss,
        optimizer=MasterAdam if half else "adamw",
        name=name,
        sample_unit="token",
        tokens_per_sample=seq_len,
        seq_len=seq_len,
    )


def _read(row: Any) -> Reading | Unscored:
    """The example's softmax is adaptive (its wt103_base.yaml), other than Lambda's."""
    return Unscored("adaptive softmax: how many words are in each cluster is unknown")


JOBS = {"transformer_xl": job_of}
ENTRIES = (Entry(EXAMPLES, "Transformer-XL", _read),)
