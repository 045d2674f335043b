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

# What selective recompute keeps: attention and every second product (torchtitan's choice, which gives back more memory
# than keeping them all); everything between them is run again.
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
    """Makes each repeated block keep for backward only its inputs (full), or also attention and every second product
    (selective).

    Raises UnsupportedError where the model has no repeated blocks to checkpoint.
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
    """The contexts of one block's forward and of its recomputation, which meet the same products in the same order."""
    met = {False: 0, True: 0}

    def policy(context: SelectiveCheckpointContext, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        kept = operation in _ATTENTION
        if operation in _PRODUCTS:
            met[context.is_recompute] += 1
            kept = met[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
