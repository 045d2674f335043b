"""What the reference models need to generate: a cache of keys and values, and causal attention over it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class LayerCache:
    """Keys and values of the earlier tokens of one layer, each (n, heads, tokens, head_dim); None before the first pass."""

    keys: Tensor | None = None
    values: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Tokens in the cache."""
        return 0 if self.keys is None else self.keys.shape[2]

    def extended(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, the new ones last; the cache keeps them."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of the last tokens, (n, heads, new, head_dim), to all tokens up to their own."""
    new, tokens = queries.shape[2], keys.shape[2]
    mask = None
    if 1 < new < tokens:
        mask = torch.ones(new, tokens, dtype=torch.bool, device=queries.device).tril(tokens - new)
    shared = queries.shape[1] != keys.shape[1]
    causal = new == tokens
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=shared)


def generate(model: nn.Module, tokens: Tensor, cache: object) -> tuple[Tensor, object]:
    """Logits (n, vocabulary) of the token after the last one of `tokens`, (n, new), and the cache with them.

    model: takes tokens and a cache of one LayerCache a layer. cache: None at first.
    """
    if cache is None:
        cache = [LayerCache() for _ in range(model.config.layers)]  # type: ignore[union-attr, arg-type]
    return model(tokens, cache), cache
