"""The result of a product of groups of rows, on tensors without memory."""

from __future__ import annotations

import torch
from torch import Tensor


def empty_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """An empty result of aten._grouped_mm with these arguments, on their device.

    PyTorch's own rule for shapes takes bf16 alone (_meta_grouped_mm_common in torch/_meta_registrations.py, PyTorch 2.13), its
    kernels other types, too. The shapes are those of _create_grouped_mm_output_tensor there.
    """
    if mat_a.dim() == 2 and mat_b.dim() == 2:  # groups of columns of one by groups of rows of the other
        assert offs is not None
        shape = [offs.size(0), mat_a.size(0), mat_b.size(1)]
    elif mat_a.dim() == 2:  # groups of rows, each by its matrix
        shape = [mat_a.size(0), mat_b.size(-1)]
    elif mat_b.dim() == 2:  # each matrix by its group of columns
        shape = [mat_a.size(1), mat_b.size(1)]
    else:
        shape = [mat_a.size(0), mat_a.size(1), mat_b.size(-1)]
    return mat_a.new_empty(shape, dtype=out_dtype or mat_a.dtype)
