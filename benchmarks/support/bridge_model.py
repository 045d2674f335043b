"""One rank's decoder with the kernels of Megatron-Core, as a gpuwise job. Needs PyTorch.

Only its operations count, not its numbers. What Megatron-Core runs as one kernel is one operation here that moves the same
bytes:

- SwiGLU and its gradient (bias_activation_fusion), rotary positions (apply_rope_fusion);
- the permutation of tokens to their experts and back (moe_permute_fusion).

Queries, keys and values are one layer, and so are gate and up. All experts of a rank are one grouped product, recorded as a
batch of products with equally many tokens: routing is forced to be balanced in the published runs. Tensor-parallel ranks
split the sequence between layers (sequence_parallel); what they gather and scatter is communication, without a kernel here.
Options: Megatron-LM, megatron/core/transformer/transformer_config.py and megatron/core/fusions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.support.bridge_shape import Experts, RankShape
from gpuwise.job import Job
from gpuwise.job.models.language import Batch, merge_heads, next_token_batch


class _SwiGlu(torch.autograd.Function):
    """(..., 2 hidden) -> (..., hidden): reads both halves, writes one; its gradient reads three and writes two.

    weight: what each row is multiplied by, one number that nobody counts; None for nothing.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight
        gate, up = x.chunk(2, dim=-1)
        return gate * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        (x,) = ctx.saved_tensors
        of_weight = None if ctx.weight is None else torch.empty_like(ctx.weight)
        return (x.unflatten(-1, (2, -1)) * gradients[0].unsqueeze(-2)).flatten(-2), of_weight


class _Rotary(torch.autograd.Function):
    """Turns each head: reads it and writes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.neg()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].neg()


class _Resized(torch.autograd.Function):
    """Another number of rows, which communication brings or takes: no kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int) -> Tensor:
        ctx.rows = x.shape[1]
        return x if x.shape[1] == rows else x.new_empty(x.shape[0], rows, x.shape[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        y = gradients[0]
        return (y if y.shape[1] == ctx.rows else y.new_empty(y.shape[0], ctx.rows, y.shape[2])), None


def resized(x: Tensor, rows: int) -> Tensor:
    """x (n, seq, width) with another length of the sequence."""
    result: Tensor = _Resized.apply(x, rows)
    return result


class Attention(nn.Module):
    """A rank's heads, whose queries, keys and values one layer makes."""

    def __init__(self, shape: RankShape):
        super().__init__()
        whole = shape.whole
        self.head_dim, self.length = whole.head_dim, shape.seq_len
        self.heads, self.kv_heads = whole.heads // shape.tp, max(1, whole.kv_heads // shape.tp)
        self.qkv = nn.Linear(whole.width, (self.heads + 2 * self.kv_heads) * whole.head_dim, bias=False)
        self.out = nn.Linear(self.heads * whole.head_dim, whole.width, bias=False)
        norms = whole.head_norms
        self.norms = nn.ModuleList(nn.RMSNorm(whole.head_dim) if norms else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        own = x.shape[1]
        parts = self.qkv(resized(x, self.length)).split([h * self.head_dim for h in (self.heads, *[self.kv_heads] * 2)], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        q, k = (_Rotary.apply(norm(y)) for norm, y in zip(self.norms, (q, k), strict=True))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return resized(self.out(merge_heads(y)), own)


class Perceptron(nn.Module):
    """SwiGLU with one layer for gate and up."""

    def __init__(self, shape: RankShape):
        super().__init__()
        hidden, self.length = shape.whole.hidden // shape.tp, shape.seq_len
        self.up = nn.Linear(shape.whole.width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, shape.whole.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = _SwiGlu.apply(self.up(resized(x, self.length)))
        return resized(self.down(hidden), x.shape[1])


class MixtureOfExperts(nn.Module):
    """A rank's experts, for as many tokens as it sends away. permutations: copies in the order of experts on each way."""

    def __init__(self, shape: RankShape, experts: Experts):
        super().__init__()
        self.chosen, self.permutations = experts.chosen, shape.permutations
        own, width = experts.count // shape.ep, shape.whole.width
        self.router = nn.Linear(width, experts.count, bias=False)
        self.up = nn.Parameter(torch.empty(own, width, 2 * experts.hidden))
        self.down = nn.Parameter(torch.empty(own, experts.hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        share = self.router(tokens).float().softmax(-1).topk(self.chosen, dim=-1)[0].to(x.dtype)
        rows = tokens[:, None].expand(-1, self.chosen, -1).flatten(0, 1)
        for _ in range(self.permutations - 1):
            rows = _Rotary.apply(rows)
        rows = rows.view(len(self.up), -1, rows.shape[-1])
        rows = torch.bmm(_SwiGlu.apply(torch.bmm(rows, self.up), share), self.down)
        for _ in range(self.permutations - 1):
            rows = _Rotary.apply(rows)
        return rows.view(len(tokens), self.chosen, -1).sum(1).view_as(x)


class Block(nn.Module):
    """Attention, then a perceptron or experts, each behind its norm."""

    def __init__(self, shape: RankShape):
        super().__init__()
        width, experts = shape.whole.width, shape.whole.experts
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(shape)
        self.mlp = MixtureOfExperts(shape, experts) if experts else Perceptron(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, a rank's part of the vocabulary)."""

    def __init__(self, shape: RankShape):
        super().__init__()
        self.shape, whole = shape, shape.whole
        self.words = nn.Embedding(whole.vocabulary // shape.tp, whole.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(whole.layers))
        self.norm = nn.RMSNorm(whole.width)
        self.head = nn.Linear(whole.width, whole.vocabulary // shape.tp, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = resized(self.words(tokens), self.shape.seq_len // self.shape.tp)
        for block in self.layers:
            x = block(x)
        logits: Tensor = self.head(resized(self.norm(x), self.shape.seq_len))
        return logits


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of logits in 16 bits (cross_entropy_loss_fusion)."""
    logits = model(batch["tokens"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def decoder_job(shape: RankShape) -> Job:
    """The job of one rank."""
    return Job(
        partial(Decoder, shape),
        partial(next_token_batch, vocabulary=shape.whole.vocabulary // shape.tp, seq_len=shape.seq_len),
        loss,
        optimizer="adamw",
        name=shape.name,
        sample_unit="token",
        tokens_per_sample=shape.seq_len,
        seq_len=shape.seq_len,
    )
