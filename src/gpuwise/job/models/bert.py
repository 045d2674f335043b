"""BERT with its masked-word head (Devlin et al. 2018); the default is the base size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job.models.language import Batch, merge_heads, normal_init, split_heads


@dataclass(frozen=True)
class BertConfig:
    vocabulary: int = 30_522
    positions: int = 512
    segments: int = 2
    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    dropout: float = 0.1


BERT_SIZES = {"bert-base": BertConfig(), "bert-large": BertConfig(width=1024, layers=24, heads=16, hidden=4096)}


class BertBlock(nn.Module):
    """Attention and perceptron, the norm after each; (n, seq, width) in and out."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.width
        self.head_dim = width // config.heads
        self.dropout = config.dropout
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, config.hidden)
        self.down = nn.Linear(config.hidden, width)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        x = self.attention_norm(x + F.dropout(self.out(merge_heads(y)), self.dropout, self.training))
        y = self.down(F.gelu(self.up(x)))
        return self.mlp_norm(x + F.dropout(y, self.dropout, self.training))


class Bert(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary). The output matrix is the word embedding."""

    def __init__(self, config: BertConfig | None = None):
        super().__init__()
        self.config = config = config or BertConfig()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.embedding_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.layers = nn.ModuleList(BertBlock(config) for _ in range(config.layers))
        self.transform = nn.Linear(config.width, config.width)
        self.transform_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.head = nn.Linear(config.width, config.vocabulary)
        self.head.weight = self.words.weight
        self.init_weights()

    def init_weights(self) -> None:
        normal_init(self, 0.02)

    def encode(self, tokens: Tensor) -> Tensor:
        """Tokens (n, seq) -> hidden states (n, seq, width), from which embeddings and answers of other heads are made."""
        position = torch.arange(tokens.shape[1], device=tokens.device)
        segment = self.segments(torch.zeros_like(tokens))  # one sentence a sample
        x = self.embedding_norm(self.words(tokens) + segment + self.positions(position))
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.layers:
            x = block(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.transform_norm(F.gelu(self.transform(self.encode(tokens)))))


def encode(model: nn.Module, batch: Batch) -> Tensor:
    """The answer to a request: hidden states of its words (n, seq, width), since nobody serves the masked-word head."""
    assert isinstance(model, Bert)
    return model.encode(batch["tokens"])
