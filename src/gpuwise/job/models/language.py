"""Shared parts of language models: example batches, losses, weight initialisation, attention's reshaping."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = dict[str, Tensor]

MASKED_FRACTION = 0.15
"""Words hidden in masked-word training (Devlin et al. 2018, section 3.1)."""


def next_token_batch(n: int, *, vocabulary: int, seq_len: int) -> Batch:
    """Random tokens and labels, both (n, seq_len) int64; the labels are the tokens moved by one."""
    tokens = torch.randint(0, vocabulary, (n, seq_len + 1))
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


def masked_word_batch(n: int, *, vocabulary: int, seq_len: int) -> Batch:
    """Random tokens and labels, both (n, seq_len) int64; labels are -100 (ignored) where no word is hidden."""
    tokens = torch.randint(0, vocabulary, (n, seq_len))
    hidden = torch.rand(n, seq_len) < MASKED_FRACTION
    return {"tokens": tokens, "labels": torch.where(hidden, tokens, -100)}


def translation_batch(n: int, *, vocabulary: int, seq_len: int) -> Batch:
    """Random source tokens, target tokens and labels, each (n, seq_len) int64; targets are the labels moved by one."""
    labels = torch.randint(1, vocabulary, (n, seq_len))
    return {"tokens": torch.randint(1, vocabulary, (n, seq_len)), "targets": F.pad(labels[:, :-1], (1, 0)), "labels": labels}


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over all positions whose label is not -100; logits are (n, seq_len, vocabulary)."""
    inputs = [batch["tokens"], batch["targets"]] if "targets" in batch else [batch["tokens"]]
    logits = model(*inputs)
    return F.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(n, seq, heads * head_dim) -> (n, heads, seq, head_dim). The number of heads follows from the width, so that a
    rank that holds only some of the heads runs the same code."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(n, heads, seq, head_dim) -> (n, seq, heads * head_dim)."""
    return x.transpose(1, 2).flatten(2)


def normal_init(model: nn.Module, std: float) -> None:
    """Normal(0, std) for linear and embedding weights, zero biases; norms restart at one."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
