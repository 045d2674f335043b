"""The sizes of a decoder as one rank of Megatron-Core computes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """The experts of each block: count, how many of them a token goes to, their inner width."""

    count: int
    chosen: int
    hidden: int


@dataclass(frozen=True)
class DecoderShape:
    """A decoder of equal blocks: grouped queries, rotary positions, SwiGLU.

    Attributes:
        name: of the published rows.
        width, layers, heads, kv_heads, head_dim, vocabulary: the usual.
        hidden: inner width of the perceptron; 0 where experts stand in its place.
        experts: None for a dense model.
        head_norms: whether queries and keys have norms of their own.
    """

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    hidden: int = 0
    experts: Experts | None = None
    head_norms: bool = False


@dataclass(frozen=True)
class RankShape:
    """What one rank has of a decoder: tp divides heads, hidden features, vocabulary and the sequence between layers, ep the
    experts. seq_len: of one rank along cp."""

    whole: DecoderShape
    seq_len: int
    tp: int = 1
    ep: int = 1
    permutations: int = 1

    @property
    def name(self) -> str:
        return f"{self.whole.name}-s{self.seq_len}-tp{self.tp}-ep{self.ep}-p{self.permutations}"


# config.json of meta-llama/Meta-Llama-3-8B, Meta-Llama-3-70B and Llama-3.1-405B, Qwen/Qwen3-30B-A3B and Qwen3-235B-A22B.
# Experts' widths are moe_intermediate_size.
SHAPES = {
    "LLAMA3_8B": DecoderShape("llama3-8b", 4096, 32, 32, 8, 128, 128_256, hidden=14_336),
    "LLAMA3_70B": DecoderShape("llama3-70b", 8192, 80, 64, 8, 128, 128_256, hidden=28_672),
    "LLAMA3.1_405B": DecoderShape("llama3.1-405b", 16_384, 126, 128, 8, 128, 128_256, hidden=53_248),
    "Qwen3_30B_a3B": DecoderShape(
        "qwen3-30b-a3b", 2048, 48, 32, 4, 128, 151_936, experts=Experts(128, 8, 768), head_norms=True
    ),
    "Qwen3_235B_a22B": DecoderShape(
        "qwen3-235b-a22b", 4096, 94, 64, 4, 128, 151_936, experts=Experts(128, 8, 1536), head_norms=True
    ),
}
