"""AttentionLayers: attention of equal layers of a model, and the part of several devices that share its heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.cost.kernels.shapes import ELEMENT_BYTES
from gpuwise.serving.chosen_keys import ChosenKeys


@dataclass(frozen=True)
class AttentionLayers:
    """Attention of equal layers.

    Attributes:
        layers: how many there are.
        heads: query heads.
        head_size: elements of a head's query.
        query_bytes: bytes of the queries of one token, and of its results.
        key_bytes: bytes of keys and values that attention reads a token in the cache; those of an indexer are apart.
        window: most tokens that a query sees, itself included; None for all.
        dtype: type that it computes in.
        chosen: keys that an indexer chooses for each query; None (default) where queries see all, or a window.
    """

    layers: int
    heads: int
    head_size: int
    query_bytes: int
    key_bytes: int
    window: int | None
    dtype: str
    chosen: ChosenKeys | None = None

    @property
    def key_heads(self) -> int:
        """Heads of keys; 1 for a latent key, which all heads read."""
        return max(1, self.key_bytes // self.key_head_bytes)

    @property
    def key_head_bytes(self) -> int:
        """Bytes of a token's key and value of one head, where values are as wide as keys."""
        return round(2 * self.head_size * ELEMENT_BYTES.get(self.dtype, 2.0))

    def shared(self, devices: int) -> AttentionLayers:
        """A device's heads. Key heads are shared as far as there are enough; a latent key is not."""
        return replace(
            self,
            heads=max(1, self.heads // devices),
            query_bytes=self.query_bytes // devices,
            key_bytes=self.key_bytes // min(devices, self.key_heads),
        )


def sharing_heads(layers: Sequence[AttentionLayers], devices: int) -> int:
    """The most devices, up to `devices`, among which engines share the heads of attention; they refuse others.

    Query heads are shared evenly; key heads too, or each by equally many devices (LlamaAttention of vLLM:
    https://github.com/vllm-project/vllm/blob/v0.10.0/vllm/model_executor/models/llama.py).
    """
    return max(count for count in range(1, devices + 1) if all(_fits(layer, count) for layer in layers))


def _fits(layer: AttentionLayers, devices: int) -> bool:
    if layer.heads % devices:
        return False
    if layer.key_bytes % layer.key_head_bytes:  # values of another width: how many heads there are is not seen
        return True
    return max(devices, layer.key_heads) % min(devices, layer.key_heads) == 0
