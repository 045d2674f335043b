"""The sizes of a GPT."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GptShape:
    """A decoder of equal blocks. vocabulary: as padded, so that its parts are multiples of 128."""

    hidden: int
    layers: int
    heads: int
    seq_len: int
    vocabulary: int

    @property
    def name(self) -> str:
        return f"megatron-{self.hidden}x{self.layers}-h{self.heads}-s{self.seq_len}-v{self.vocabulary}"

    @property
    def architecture(self) -> str:
        """Width and depth: what a model is kept out of a fit by."""
        return f"{self.hidden}x{self.layers}"
