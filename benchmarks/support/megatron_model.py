"""A GPT as Megatron-LM trained it in 2022, as a gpuwise job. Needs PyTorch.

What the published runs were made with is followed where it costs time (NVIDIA/Megatron-LM, megatron/model/transformer.py of
2022): attention of products whose scale is part of the first and whose mask is part of the softmax (fused kernels: no mask is
read), dropout of 0.1 on probabilities and on what is added to the residuals, one layer for queries, keys and values of each
head, an output layer tied to the word embedding, half precision throughout. The sequence is the first dimension inside, so that
attention's products read heads where they lie. The update is that of megatron_step, not the job's.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.support.megatron_shape import GptShape
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss

DROPOUT = 0.1


class Block(nn.Module):
    """Attention and perceptron, each behind its norm; (seq, n, hidden) in and out.

    core_again: attention's products and softmax are computed again in backward (selective recompute).
    fused: scores are scaled, masked and normalised by one kernel; else by PyTorch's own, in fp32.
    """

    mask: Tensor

    def __init__(self, shape: GptShape, *, core_again: bool, fused: bool):
        super().__init__()
        hidden, self.fused = shape.hidden, fused
        if not fused:
            mask = torch.ones(shape.seq_len, shape.seq_len, dtype=torch.bool).triu(1)
            self.register_buffer("mask", mask, persistent=False)
        self.head_dim, self.core_again = hidden // shape.heads, core_again
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x))
        core = partial(checkpoint, self.core, use_reentrant=False) if self.core_again else self.core
        x = x + F.dropout(self.out(core(qkv)), DROPOUT, self.training)
        y = self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return x + F.dropout(y, DROPOUT, self.training)

    def core(self, qkv: Tensor) -> Tensor:
        """Attention of each head, whose queries, keys and values lie side by side: (seq, n, 3 hidden) -> (seq, n, hidden)."""
        length, n, _ = qkv.shape
        q, k, v = (part.transpose(0, 1) for part in qkv.view(length, -1, 3 * self.head_dim).chunk(3, dim=-1))
        scores = q.new_empty(q.shape[0], length, length)
        scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(self.head_dim))
        shares = F.dropout(F.softmax(scores, dim=-1) if self.fused else self.shares(scores), DROPOUT, self.training)
        return torch.bmm(shares, v).transpose(0, 1).reshape(length, n, -1)

    def shares(self, scores: Tensor) -> Tensor:
        """Softmax of masked scores, scaled back by the number of the layer (--apply-query-key-layer-scaling, the default)."""
        masked = (scores.float() * 1.0).masked_fill_(self.mask, -10_000.0)
        return F.softmax(masked, dim=-1).to(scores.dtype)


class Gpt(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary)."""

    def __init__(self, shape: GptShape, *, core_again: bool, fused: bool):
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.seq_len, shape.hidden)
        self.layers = nn.ModuleList(Block(shape, core_again=core_again, fused=fused) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(position)
        x = F.dropout(x.transpose(0, 1).contiguous(), DROPOUT, self.training)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x).transpose(0, 1).contiguous())


def gpt_job(shape: GptShape, *, core_again: bool, fused: bool) -> Job:
    """The job. core_again, fused: see Block."""
    return Job(
        partial(Gpt, shape, core_again=core_again, fused=fused),
        partial(next_token_batch, vocabulary=shape.vocabulary, seq_len=shape.seq_len),
        token_loss,
        optimizer="adamw",
        name=shape.name,
        sample_unit="token",
        tokens_per_sample=shape.seq_len,
        seq_len=shape.seq_len,
    )
