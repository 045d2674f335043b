"""Autocast on the virtual device with CUDA's cast lists, and its cache of cast weights.

The lists are those of aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP,
_FP32, _FP32_SET_OPT_DTYPE, _PROMOTE) of PyTorch 2.13; an older version casts those of them that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from gpuwise.tracing.describe import device_type
from gpuwise.tracing.patching import patched
from gpuwise.tracing.virtual_device import DEVICE

LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
_scaled_dot_product_flash_attention scaled_dot_product_attention
""".split()

FULL = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
""".split()

# Computed and returned in fp32 by their dtype argument, unless the caller gave one.
FULL_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()

PROMOTE = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""".split()

Kernel: TypeAlias = Callable[..., object]
_libraries: list[torch.library.Library] = []  # a registration lives as long as its library
_cast_weights: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of the weight: it and its cast
_clear_original: Callable[[], None] = torch.clear_autocast_cache
_below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def register() -> None:
    """Every operator falls through autocast but those of the lists."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for names, make in ((LOWER, _lower), (FULL, full), (FULL_RESULT, _full_result), (PROMOTE, _promote)):
        for name in filter(cast_on_cuda, names):
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(f"aten::{name}", make(operator), "AutocastPrivateUse1")
    _libraries.extend([everything, library])
    library.impl("aten::norm.Scalar", _norm, "AutocastPrivateUse1")
    library.impl("aten::norm.ScalarOpt_dim", _norm_over, "AutocastPrivateUse1")
    library.impl("aten::_cudnn_rnn", _recurrent, "AutocastPrivateUse1")
    library.impl("aten::binary_cross_entropy", _unsafe, "AutocastPrivateUse1")
    torch.clear_autocast_cache = _clear_cache


def cast_on_cuda(name: str) -> bool:
    """Whether the installed PyTorch's autocast has a kernel of its own for this operator on CUDA; rms_norm is in no list
    before 2.13."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"))


@contextmanager
def of_cuda() -> Iterator[None]:
    """Inside, torch.autocast("cuda"), which a job may enter itself, is autocast of the virtual device."""
    autocast = torch.amp.autocast_mode.autocast
    original = autocast.__init__

    def init(
        self: torch.amp.autocast_mode.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = DEVICE, dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, enabled, cache_enabled)

    with patched(autocast, "__init__", init):
        yield


def _clear_cache() -> None:
    """Forgets PyTorch's cast weights and ours; called at the end of an autocast region."""
    _cast_weights.clear()
    _clear_original()


def _lower(operator: OpOverload) -> Kernel:
    return _casting(operator, lambda args: torch.get_autocast_dtype(DEVICE))


def full(operator: OpOverload) -> Kernel:
    """The kernel of an operator that computes in fp32."""
    return _casting(operator, lambda args: torch.float32)


def _full_result(operator: OpOverload) -> Kernel:
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(x: Tensor, *args: object, **kwargs: object) -> object:
        by_position = position < 1 + len(args)
        with torch._C._ExcludeDispatchKeyGuard(_below):
            if not by_position and kwargs.get("dtype") is None and x.is_floating_point():
                kwargs["dtype"] = torch.float32
            return operator(x, *args, **kwargs)

    return kernel


def _norm(x: Tensor, p: float = 2) -> Tensor:
    """The overload that takes a dtype, with fp32 (fp32_append_dtype in aten/src/ATen/autocast_mode.cpp)."""
    with torch._C._ExcludeDispatchKeyGuard(_below):
        return torch.ops.aten.norm.ScalarOpt_dtype(x, p, dtype=torch.float32)


def _norm_over(x: Tensor, p: float | None, dim: list[int], keepdim: bool = False) -> Tensor:
    """As `_norm`, over some dimensions."""
    with torch._C._ExcludeDispatchKeyGuard(_below):
        return torch.ops.aten.norm.ScalarOpt_dim_dtype(x, p, dim, keepdim, dtype=torch.float32)


def _recurrent(
    x: Tensor,
    weight: list[Tensor],
    stride: int,
    weight_buffer: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    *args: object,
) -> tuple[Tensor, ...]:
    """cuDNN's recurrent layers run in fp16 whatever autocast's type, their weights cast at every call into one buffer
    (aten/src/ATen/cudnn/AutocastRNN.cpp)."""
    half = torch.float16
    with torch._C._ExcludeDispatchKeyGuard(_below):
        weight = [w.to(half) if w.dtype != torch.float64 else w for w in weight]
        states = (_cast(t, half) for t in (hx, cx))
        outputs: tuple[Tensor, ...] = torch.ops.aten._cudnn_rnn(_cast(x, half), weight, stride, weight_buffer, *states, *args)
        return outputs


def _unsafe(*args: object, **kwargs: object) -> object:
    """CUDA's autocast refuses it (binary_cross_entropy_banned in aten/src/ATen/autocast_mode.cpp)."""
    raise RuntimeError("binary_cross_entropy does not run under autocast: use binary_cross_entropy_with_logits")


def _promote(operator: OpOverload) -> Kernel:
    return _casting(operator, _widest)


def _widest(args: object) -> torch.dtype:
    """fp32 as soon as one floating argument is fp32, else the autocast type."""
    dtypes = {t.dtype for t in tree_leaves(args) if isinstance(t, Tensor) and t.is_floating_point()}
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype(DEVICE)


def _casting(operator: OpOverload, dtype_of: Callable[[object], torch.dtype]) -> Kernel:
    """A kernel that casts its arguments. dtype_of: the type they are cast to, from (args, kwargs)."""

    def kernel(*args: object, **kwargs: object) -> object:
        with torch._C._ExcludeDispatchKeyGuard(_below):
            dtype = dtype_of((args, kwargs))
            args, kwargs = tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    """Casts floating tensors of the device; leaves that are fp32 weights are cast once a region and kept."""
    if not isinstance(leaf, Tensor) or device_type(leaf) != DEVICE or not leaf.is_floating_point():
        return leaf
    if leaf.dtype in (dtype, torch.float64):
        return leaf
    if not (leaf.is_leaf and leaf.requires_grad and leaf.dtype == torch.float32 and torch.is_autocast_cache_enabled()):
        return leaf.to(dtype)
    if id(leaf) not in _cast_weights:
        _cast_weights[id(leaf)] = (leaf, leaf.to(dtype))
    return _cast_weights[id(leaf)][1]
