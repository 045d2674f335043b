"""Compiles a model: its repeated blocks, each as a separate graph, or the whole model."""

from __future__ import annotations

import torch
from torch import nn

from gpuwise.job.blocks import repeated_blocks


def apply_compile(model: nn.Module) -> None:
    """Compiles the forward of each part with torch.compile.

    `part.compile()` would start at a frame of torch.nn. From there TorchDynamo enters neither PyTorch's own layers nor a
    checkpointed forward, and silently leaves them eager.
    """
    for part in compiled_parts(model):
        part.forward = torch.compile(part.forward)


def compiled_parts(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model if all of them are alike, otherwise the model itself.

    Blocks are alike if they have the same class and parameter shapes. One compilation then serves all blocks, and its time
    does not grow with their number (torchtitan does the same; PyTorch's tutorial calls it regional compilation). Layers
    outside the blocks (embeddings, the last norm and head) run eagerly. Different blocks would be compiled once per kind,
    with symbolic sizes from the second kind on. A pipeline's stage has no forward of its own: its blocks are compiled.
    """
    blocks = repeated_blocks(model)
    kinds = {(type(b), tuple((name, p.shape) for name, p in b.named_parameters())) for b in blocks}
    return blocks if len(kinds) == 1 or "pipeline_blocks" in vars(model) else [model]
