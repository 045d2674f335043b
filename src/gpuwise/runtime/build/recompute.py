"""Activation checkpointing of a model's repeated blocks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from gpuwise.errors import UnsupportedError
from gpuwise.job.blocks import repeated_blocks

# Selective recompute keeps attention and every second product, and recomputes everything else. This is torchtitan's
# choice; it saves more memory than keeping all products.
_PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")}
_ATTENTION = {
    getattr(torch.ops.aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
}


def apply_recompute(model: nn.Module, recompute: str) -> None:
    """Checkpoints each repeated block of a model.

    Arguments:
        recompute: full keeps only a block's inputs for backward; selective also keeps attention and every second product.

    Raises UnsupportedError when the model has no repeated blocks.
    """
    if recompute == "none":
        return
    blocks = repeated_blocks(model)
    if not blocks:
        raise UnsupportedError(
            f"{type(model).__name__} has no repeated blocks for recompute={recompute!r} to act on.",
            ["use --recompute none", "group the layers in a torch.nn.ModuleList or Sequential"],
        )
    run = partial(checkpoint, use_reentrant=False)
    if recompute == "selective":
        run = partial(run, context_fn=_keep_some)
    for block in blocks:
        block.forward = partial(run, block.forward)  # keeps names of parameters as they are


def _keep_some() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """The contexts of a block's forward and of its recomputation, which run the same products in the same order."""
    met = {False: 0, True: 0}

    def policy(context: SelectiveCheckpointContext, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        kept = operation in _ATTENTION
        if operation in _PRODUCTS:
            met[context.is_recompute] += 1
            kept = met[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
