"""The kernel that CUDA takes for scaled_dot_product_attention, and the operations around it.

The choice is that of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend) and sdp_utils_cpp.h, the
rest that of attention.cpp beside them, all of PyTorch 2.13. There only the flash and cuDNN kernels take grouped heads
(pytorch/pytorch pull request 191085 adds the memory-efficient one later). On Hopper and Blackwell with cuDNN newer than
9.15.0, PyTorch prefers cuDNN's kernel to flash; both keep the same for backward, so flash stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C import _SDPBackend as Backend

from gpuwise.tracing.kernels.target import current

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
FLASH_MAX_HEAD_SIZE = 256  # check_head_dim_size_flash
_CUDNN_MAX_HEAD_SIZE = 128  # check_cudnn_tensor_shapes, but on sm90 and sm100
_MASK_ALIGNMENT = 8  # preprocess_mask in attention.cpp: elements


@dataclass(frozen=True)
class Call:
    """Arguments of one call that decide its kernel.

    Attributes:
        query: of shape (batch, heads, queries, head size).
        key: of shape (batch, heads, keys, head size).
        value: of shape (batch, heads, keys, size).
        mask: attn_mask; None where there is none.
        dropout: dropout_p.
        causal: is_causal.
        grouped: enable_gqa.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def keeps_logsumexp(self) -> bool:
        """Whether the forward kernel stores what backward needs (should_compute_logsumexp)."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.tensors)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention with the kernel of the current target."""
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    backend = choose(call)
    mask = _additive(attn_mask, query.dtype)
    if backend == Backend.FLASH_ATTENTION:
        return _flash(call, scale)
    if backend == Backend.EFFICIENT_ATTENTION:
        return aten._scaled_dot_product_efficient_attention(
            query,
            key,
            value,
            None if mask is None else _aligned(mask, call),
            call.keeps_logsumexp,
            dropout_p,
            is_causal,
            scale=scale,
        )[0]
    if backend == Backend.CUDNN_ATTENTION:
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, call.keeps_logsumexp, dropout_p, is_causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def choose(call: Call) -> Backend:
    """The first kernel in PyTorch's order that is switched on (torch.nn.attention.sdpa_kernel) and can run.

    Raises RuntimeError, as PyTorch does, where none can.
    """
    cuda = torch.backends.cuda
    can_run = {
        Backend.FLASH_ATTENTION: lambda: cuda.flash_sdp_enabled() and _flash_can(call),
        Backend.EFFICIENT_ATTENTION: lambda: cuda.mem_efficient_sdp_enabled() and _efficient_can(call),
        Backend.MATH: cuda.math_sdp_enabled,
        Backend.CUDNN_ATTENTION: lambda: cuda.cudnn_sdp_enabled() and _cudnn_can(call),
    }
    for number in torch._C._get_sdp_priority_order():
        backend = Backend(number)
        if backend in can_run and can_run[backend]():
            return backend
    raise RuntimeError("scaled_dot_product_attention: no kernel that is switched on can run with these arguments")


def flash_can_run(params: torch.backends.cuda.SDPAParams, debug: bool = False) -> bool:
    """As torch.backends.cuda.can_use_flash_attention, of the current target."""
    call = Call(params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal, params.enable_gqa)
    return torch.backends.cuda.flash_sdp_enabled() and _flash_can(call)


def _flash_can(call: Call) -> bool:
    sizes = {t.shape[-1] for t in call.tensors}
    return (
        _ampere()
        and _dense(call, grouped_heads=True, stride_of_one_column=True)
        and call.mask is None
        and call.query.dtype in _HALF
        and len(sizes) == 1
        and max(sizes) <= FLASH_MAX_HEAD_SIZE
        and not (call.causal and call.query.shape[2] != call.key.shape[2])
    )


def _efficient_can(call: Call) -> bool:
    dtype, half = call.query.dtype, call.query.dtype in _HALF
    if dtype not in ((*_HALF, torch.float32) if _ampere() else (torch.float16, torch.float32)):
        return False
    alignment = 8 if half else 4 if _ampere() else 1  # minimum_gemm_alignment: 128 bits where tensor cores run
    starts = [t.storage_offset() % alignment for t in call.tensors] if _ampere() else [0]
    return (
        _dense(call, grouped_heads=False, stride_of_one_column=False)
        and call.query.shape[3] == call.key.shape[3]
        and call.query.shape[3] % alignment == 0
        and call.value.shape[3] % alignment == 0
        and not any(starts)
    )


def _cudnn_can(call: Call) -> bool:
    sizes = call.query.shape[3], call.value.shape[3]
    return (
        _ampere()
        and _dense(call, grouped_heads=True, stride_of_one_column=True)
        and call.query.dtype in _HALF
        and max(sizes) <= _CUDNN_MAX_HEAD_SIZE
        and not any(size % 8 for size in sizes)
        and (call.mask is None or not call.mask.requires_grad)
        and call.dropout * 16 == int(call.dropout * 16)
        and call.key.shape[2] != 1
    )


def _ampere() -> bool:
    capability = current().compute_capability
    return capability is not None and capability >= (8, 0)


def _dense(call: Call, *, grouped_heads: bool, stride_of_one_column: bool) -> bool:
    """The conditions of every fused kernel: four dimensions, one batch size, one number of heads, unit strides."""
    query, key, value = call.tensors
    if any(t.dim() != 4 or t.dtype != query.dtype for t in call.tensors) or 0 in (query.shape[2], key.shape[2]):
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    if call.grouped and grouped_heads:
        if key.shape[1] != value.shape[1] or query.shape[1] % key.shape[1]:
            return False
    elif not query.shape[1] == key.shape[1] == value.shape[1]:
        return False
    unit = all(t.stride(-1) == 1 for t in call.tensors) or (stride_of_one_column and query.shape[3] == 1)
    return unit and (call.mask is None or call.mask.stride(-1) == 1)


def _flash(call: Call, scale: float | None) -> Tensor:
    """Head sizes are padded to a multiple of 8 around the kernel, and the result cut back."""
    head_size = call.query.shape[-1]
    query, key, value = call.tensors
    padding = -head_size % 8
    if padding:
        scale = scale if scale is not None else head_size**-0.5
        query, key, value = (torch.nn.functional.pad(t, (0, padding)) for t in call.tensors)
    out: Tensor = aten._scaled_dot_product_flash_attention(query, key, value, call.dropout, call.causal, False, scale=scale)[0]
    return out[..., :head_size] if padding else out


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask as numbers to add (convert_boolean_attn_mask)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device))


def _aligned(mask: Tensor, call: Call) -> Tensor:
    """The mask padded to aligned rows where it is not, then expanded to every head (preprocess_mask)."""
    *outer, last = mask.stride()
    if last != 1 or any(stride % _MASK_ALIGNMENT for stride in outer):
        columns = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, _MASK_ALIGNMENT - columns % _MASK_ALIGNMENT))[..., :columns]
    query, key = call.query, call.key
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
