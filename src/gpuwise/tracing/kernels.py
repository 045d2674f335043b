"""The kernels a CUDA build would choose, registered for the virtual device.

Without this, attention falls apart into its products and batch norm into the portable kernel, and both keep other
tensors for backward than a GPU does. Sources: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (attention),
aten/src/ATen/native/Normalization.cpp (batch norm).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_impls import register_op_impl

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
FLASH_MAX_HEAD_SIZE = 256  # check_head_dim_size_flash in sdp_utils.cpp
_libraries: list[Any] = []  # a registration lives as long as its library


def register() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    library.impl("batch_norm", batch_norm, "AutogradPrivateUse1")
    # Kernels that CUDA has and other backends replace by their parts.
    for name in ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward"):
        library.impl(name, _never_runs, "PrivateUse1")
    register_op_impl(aten._fused_rms_norm.default)(_fused_rms_norm_shapes)
    library.impl("_fused_sgd_", lambda *args, **kwargs: None, "Meta")  # works in place; PyTorch gives it no shape rule
    _libraries.append(library)


def _never_runs(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("fake tensors answer before a kernel of the virtual device could run")


def _fused_rms_norm_shapes(mode: Any, func: Any, x: torch.Tensor, normalized_shape: list[int],
                           weight: torch.Tensor | None, eps: float | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The normalised tensor and the reciprocal root mean squares kept in fp32 for backward."""
    kept = (*x.shape[: x.dim() - len(normalized_shape)], *[1] * len(normalized_shape))
    with mode:
        return torch.empty_like(x), x.new_empty(kept, dtype=torch.float32)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
              enable_gqa: bool = False) -> torch.Tensor:  # fmt: skip
    """Flash where it can (half precision, no mask), else memory-efficient: the order CUDA tries on Ampere and newer."""
    if query.dim() != 4 or (
        attn_mask is not None and attn_mask.requires_grad and query.dtype not in (*_HALF, torch.float32)
    ):
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]  # fmt: skip
    head_size = query.shape[-1]
    if attn_mask is None and query.dtype in _HALF and head_size <= FLASH_MAX_HEAD_SIZE:
        # Head sizes are padded to a multiple of 8 around the kernel, and the result cut back.
        padding = -head_size % 8
        if padding:
            scale = scale if scale is not None else head_size**-0.5
            query, key, value = (torch.nn.functional.pad(t, (0, padding)) for t in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :head_size] if padding else out
    if key.shape[1] != query.shape[1]:  # only flash reads grouped heads as they are
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keeps_logsumexp = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, keeps_logsumexp, dropout_p, is_causal, scale=scale)[0]  # fmt: skip


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """cuDNN's kernel where CUDA takes it: affine, training, at least 3-D, not double."""
    if (
        training
        and x.dim() >= 3
        and weight is not None
        and bias is not None
        and x.dtype != torch.float64
        and cudnn_enabled
    ):
        return aten.cudnn_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]
    return aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]
