"""bitsandbytes' 4-bit product on the virtual accelerator: its weight unpacked, then an ordinary product.

That is what its CUDA kernel does with more than 1,536 rows (backends/cuda/ops.py of bitsandbytes 0.50), and older versions
with any number in training; with fewer rows newer ones may take a kernel that never unpacks the weight, so that the memory
of the unpacked weight is an upper bound there.
"""

from __future__ import annotations

import sys

import torch

_libraries: list[torch.library.Library] = []  # a registration lives as long as its library


def register() -> None:
    """Once a process, and only where bitsandbytes is loaded."""
    if _libraries or "bitsandbytes" not in sys.modules:
        return
    library = torch.library.Library("bitsandbytes", "IMPL")
    library.impl("gemm_4bit", gemm_4bit, "AutogradPrivateUse1")
    _libraries.append(library)


def gemm_4bit(
    x: torch.Tensor,
    weight: torch.Tensor,
    shape: list[int],
    absmax: torch.Tensor,
    blocksize: int,
    quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """x @ weight.T + bias with a weight of `shape` (out, in) in 4 bits; absmax_8bit: its scales where those are quantized.

    Source: _gemm_4bit_default_impl in backends/default/ops.py of bitsandbytes.
    """
    operations = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        absmax = operations.dequantize_blockwise(absmax_8bit, absmax, absmax_code, 256, torch.float32) + absmax_offset
    unpacked = operations.dequantize_4bit(weight, absmax, blocksize, quant_type, shape, x.dtype)
    return torch.nn.functional.linear(x, unpacked, bias)
