"""A small decoder as a job, for tests that train it on several ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job import Job

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, SEQ_LEN = 64, 32, 4, 64, 4, 16


class TinyAttention(nn.Module):
    def __init__(self, heads: int, key_value_heads: int) -> None:
        super().__init__()
        self.head_dim = head = WIDTH // heads
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, key_value_heads * head, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        q, k, v = (layer(x).view(batch, length, -1, self.head_dim).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class TinyMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class TinyBlock(nn.Module):
    def __init__(self, key_value_heads: int, dropout: float, heads: int = HEADS) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp, self.dropout = TinyAttention(heads, key_value_heads), TinyMlp(), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class TinyDecoder(nn.Module):
    """Embedding, blocks in a ModuleList, norm and head; the head is the embedding if `tied`."""

    def __init__(
        self,
        *,
        layers: int = LAYERS,
        heads: int = HEADS,
        key_value_heads: int | None = None,
        tied: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        key_value_heads = key_value_heads or heads
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(TinyBlock(key_value_heads, dropout, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens_of(samples: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Sequences that count in threes from a random start: a rule to learn, so that the loss falls."""
    start = torch.randint(0, VOCABULARY, (samples, 1), generator=torch.Generator().manual_seed(seed))
    rows = (start + 3 * torch.arange(SEQ_LEN + 1)) % VOCABULARY
    return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


def next_token_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten())


def adamw(parameters: object) -> torch.optim.Optimizer:
    """With an epsilon that keeps updates of tiny gradients from amplifying rounding."""
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4)  # type: ignore[arg-type]


def decoder_job(*, clip_norm: float | None = None, ema_decay: float | None = None, optimizer: object = adamw, **model: object):
    """The job of a TinyDecoder; `model` are its arguments."""
    return Job(
        model=lambda: TinyDecoder(**model),  # type: ignore[arg-type]
        batch=tokens_of,
        loss=next_token_loss,
        optimizer=optimizer,  # type: ignore[arg-type]
        name="tiny decoder",
        learning_rate=1e-2,
        clip_norm=clip_norm,
        ema_decay=ema_decay,
        seq_len=SEQ_LEN,
    )
