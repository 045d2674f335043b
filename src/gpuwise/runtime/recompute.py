"""Activation checkpointing of a model's repeated blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpuwise.errors import UnsupportedError
from gpuwise.job.blocks import repeated_blocks

# What selective recompute keeps: products and attention, dear to repeat; everything between them is run again.
_KEPT = {getattr(torch.ops.aten, name).default for name in (
    "mm", "addmm", "bmm", "baddbmm", "convolution",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu")}  # fmt: skip


def apply_recompute(model: nn.Module, recompute: str) -> None:
    """Makes each repeated block keep only its inputs (full), or its inputs and products (selective), for backward.

    Raises UnsupportedError where the model has no repeated blocks to checkpoint.
    """
    if recompute == "none":
        return
    blocks = repeated_blocks(model)
    if not blocks:
        raise UnsupportedError(f"{type(model).__name__} has no repeated blocks for recompute={recompute!r} to act on.",
                               ["use --recompute none", "group the layers in a torch.nn.ModuleList or Sequential"])  # fmt: skip
    options: dict[str, Any] = {"use_reentrant": False}
    if recompute == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_products)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, **options)  # keeps names of parameters as they are


def _keep_products(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
