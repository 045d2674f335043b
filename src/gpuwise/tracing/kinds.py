"""The kind of kernel of an operator. PyTorch's own tags classify unknown operators."""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload

Kind = str

_BY_NAME: dict[Kind, str] = {
    "gemm": "mm addmm bmm baddbmm mv addmv dot vdot addbmm _addmm_activation _scaled_mm _int_mm _grouped_mm",
    "conv": "convolution convolution_backward _convolution mkldnn_convolution cudnn_convolution",
    "norm": "native_layer_norm native_layer_norm_backward cudnn_batch_norm cudnn_batch_norm_backward native_batch_norm "
    "native_batch_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm "
    "_fused_rms_norm_backward _native_batch_norm_legit batch_norm_backward _batch_norm_with_update",
    "softmax": "_softmax _softmax_backward_data _safe_softmax",
    "loss": "_log_softmax _log_softmax_backward_data nll_loss_forward nll_loss_backward nll_loss2d_forward "
    "nll_loss2d_backward mse_loss mse_loss_backward binary_cross_entropy_with_logits smooth_l1_loss "
    "smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward "
    "_ctc_loss _ctc_loss_backward _cudnn_ctc_loss",
    "embedding": "embedding index_select gather index _embedding_bag _embedding_bag_forward_only take",
    "scatter": "embedding_dense_backward scatter scatter_ scatter_add scatter_add_ index_put index_put_ _index_put_impl_ "
    "index_add index_add_ index_copy index_copy_ scatter_reduce scatter_reduce_ index_reduce index_reduce_ "
    "_embedding_bag_backward _embedding_bag_dense_backward masked_scatter masked_scatter_ "
    "_unsafe_index_put select_backward slice_backward",
    "pool": "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool3d_with_indices avg_pool3d upsample_nearest2d "
    "upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward adaptive_max_pool2d "
    "roi_align _roi_align_backward",
    "copy": "_to_copy copy_ copy clone contiguous cat stack constant_pad_nd zeros zeros_like zero_ fill_ full full_like ones "
    "ones_like repeat roll flip pixel_shuffle pixel_unshuffle split_with_sizes_copy im2col col2im "
    "new_zeros new_full new_ones arange scalar_tensor chunk_cat _chunk_cat all_gather_copy_in _foreach_copy_",
    "random": "native_dropout native_dropout_backward bernoulli bernoulli_ rand randn rand_like randn_like randint "
    "uniform_ normal_ multinomial randperm",
    "reduction": "sum mean amax amin max min prod var var_mean std norm linalg_vector_norm logsumexp argmax argmin all any",
    "rnn": "_cudnn_rnn _cudnn_rnn_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward",
    # The gates of one time step, from products that are operators of their own.
    "elementwise": "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell "
    "_thnn_fused_gru_cell_backward",
    "sort": "sort topk argsort cumsum cumprod unique unique_consecutive _unique2 searchsorted bucketize histc bincount "
    "kthvalue median mode cummax cummin logcumsumexp nonzero nms",
}
_NAMES = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}


@cache
def kind_of(op: OpOverload) -> Kind:
    """One of gpuwise.trace.KINDS for an operator overload."""
    name = op._overloadpacket.__name__
    if op.namespace in ("c10d", "_c10d_functional", "c10d_functional"):
        return "collective"
    if name in _NAMES:
        return _NAMES[name]
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return "attention"
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return "optimizer"
    if torch.Tag.pointwise in op.tags or name.rstrip("_").endswith("_backward") or name.endswith("_"):
        return "elementwise"
    return "other"
