"""A word-level LSTM language model; the default is the medium one of Zaremba et al. 2014 (arXiv:1409.2329, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LstmConfig:
    vocabulary: int = 10_000
    width: int = 650
    layers: int = 2
    dropout: float = 0.5


class Lstm(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary)."""

    def __init__(self, config: LstmConfig | None = None):
        super().__init__()
        self.config = config = config or LstmConfig()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.LSTM(config.width, config.width, config.layers, dropout=config.dropout, batch_first=True)
        self.head = nn.Linear(config.width, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.words(tokens), self.config.dropout, self.training)
        x, _ = self.layers(x)
        return self.head(F.dropout(x, self.config.dropout, self.training))
