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

    def fused_softmax(self, *, micro_batch: int, tp: int) -> bool:
        """Whether scale, mask and softmax are one kernel on each rank (megatron/model/fused_softmax.py, is_kernel_available, of
        2021 and 2022): only for sequences of 2,048 at most, four of them and four score matrices at a time."""
        matrices = micro_batch * self.heads // tp
        return 16 < self.seq_len <= 2048 and self.seq_len % 4 == 0 and matrices % 4 == 0

    @property
    def architecture(self) -> str:
        """Width and depth: what a model is kept out of a fit by."""
        return f"{self.hidden}x{self.layers}"
