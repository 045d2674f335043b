"""What Transformer Engine does to multiply in fewer bits: which format, and how many bytes quantizing a number moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LowPrecision:
    """A recipe of Transformer Engine.

    Attributes:
        dtype: of products.
        bytes_per_number: of an operand.
        read, written: bytes that quantizing a number in 16 bits moves: its absolute maximum is found first where a scale is
            that of a whole tensor, and a second copy is written where products need the other direction.
        normed_read, normed_written: the same behind a norm, whose kernel finds maxima, and quantizes by blocks.
    """

    dtype: str
    bytes_per_number: float
    read: float
    written: float
    normed_read: float
    normed_written: float


# Hopper multiplies 8-bit operands in one layout alone, Blackwell in all; MXFP8 and NVFP4 scale blocks of 32 and 16 numbers
# along the depth, so each direction has a copy of its own; NVFP4 has a scale of the whole tensor too (nvidia.github.io/
# TransformerEngine, features/low_precision_training).
_FP8, _FP4 = "float8_e4m3fn", "float4_e2m1fn_x2"
CURRENT_HOPPER = LowPrecision(_FP8, 1, read=4, written=2, normed_read=2, normed_written=2)
CURRENT_BLACKWELL = LowPrecision(_FP8, 1, read=4, written=1, normed_read=2, normed_written=1)
MXFP8 = LowPrecision(_FP8, 1 + 1 / 32, read=2, written=2 + 2 / 32, normed_read=0, normed_written=0)
NVFP4 = LowPrecision(_FP4, 0.5 + 1 / 16, read=4, written=1 + 2 / 16, normed_read=2, normed_written=1 + 2 / 16)
