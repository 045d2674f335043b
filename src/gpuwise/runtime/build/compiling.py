"""What of a model is compiled: its repeated blocks, each as a graph of its own, or the model whole."""

from __future__ import annotations

import torch
from torch import nn

from gpuwise.job.blocks import repeated_blocks


def apply_compile(model: nn.Module) -> None:
    """Makes the parts of the model run under torch.compile from their first call on.

    Their forward is compiled rather than `part.compile()` called: that starts at a frame of torch.nn, from which TorchDynamo
    does not go into PyTorch's own layers nor into a checkpointed forward, and would leave them eager without a word.
    """
    for part in compiled_parts(model):
        part.forward = torch.compile(part.forward)


def compiled_parts(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model in which all of them are alike, else the model itself.

    Alike means the same class and parameter shapes: then one compilation serves all blocks, in a time that does not grow
    with their number (torchtitan compiles so; PyTorch's tutorial calls it regional compilation). What stands around the
    blocks (embeddings, the last norm and head) runs eagerly. Blocks that differ would be compiled again for each kind,
    with symbolic sizes from the second on.
    """
    blocks = repeated_blocks(model)
    kinds = {(type(b), tuple((name, p.shape) for name, p in b.named_parameters())) for b in blocks}
    return blocks if len(kinds) == 1 else [model]
