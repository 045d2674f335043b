"""What products of experts take over equally many products of equal size, which kernels of engines compute in one call.

Constants of a call: medians over tables of vLLM's fused_moe in ai-dynamo/aiconfigurator (Apache-2.0), on up to 64 tokens
(`python -m benchmarks.serving.expert_tables`); the others were fitted on the same tables.
"""

from __future__ import annotations

import numpy as np

from gpuwise.hardware.types import Chip
from gpuwise.serving.formats import StoredWeights

# Times longer up to FEW_TOKENS and from MANY_TOKENS on, where the fullest experts are waited for.
FEW_TOKENS, MANY_TOKENS, GROUPED_FEW, GROUPED_MANY = 256, 1024, 1.1, 1.5
# Seconds of a call, in which tokens are sorted and rounded: of fp8 and of llama.cpp's kernels; of kernels of a data centre's
# Blackwell GPUs, which are one with what is around them (FlashInfer); of all others, those that unpack weights among them.
GROUPED_S, GROUPED_ONE_KERNEL_S, GROUPED_APART_S = 8e-6, 3.4e-6, 19e-6
_BLACKWELL = 10  # major compute capability of B200, GB200 and B300


def grouped_share(tokens: int) -> float:
    """How many times as long the products of experts take for so many tokens."""
    share = np.interp(np.log2(max(tokens, 1)), np.log2([FEW_TOKENS, MANY_TOKENS]), [0.0, 1.0])
    return float(GROUPED_FEW + share * (GROUPED_MANY - GROUPED_FEW))


def grouped_call_s(chip: Chip, weights: StoredWeights, weight_bytes: float, arithmetic: str) -> float:
    """Seconds of a call of a grouped product.

    weight_bytes: of an element; 0 as recorded, in 16 bits. arithmetic: type that it computes in; "" for that of activations.
    """
    if weights.reading_arithmetic or "float8" in arithmetic:
        return GROUPED_S
    unpacks = bool(weight_bytes) and not arithmetic
    fused = chip.compute_capability is not None and chip.compute_capability[0] == _BLACKWELL and not unpacks
    return GROUPED_ONE_KERNEL_S if fused else GROUPED_APART_S
