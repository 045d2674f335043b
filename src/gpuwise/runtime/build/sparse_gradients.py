"""Kernels of an update for embeddings with sparse=True, whose gradients hold only the rows that a batch used."""

from __future__ import annotations

from torch import nn

from gpuwise.errors import InputError
from gpuwise.strategy import KERNELS_OF

_OF_ROWS = ("sgd", "momentum")  # the optimizers by name whose update takes such gradients (torch/optim)


def has_sparse_gradients(model: nn.Module) -> bool:
    """Whether a trained table of the model gives sparse gradients."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return any(table.sparse and table.weight.requires_grad for table in tables)


def sparse_kernels(optimizer: str, kernels: str | None, *, job: str) -> str:
    """The kernels of an update with sparse gradients: those requested, else foreach, as PyTorch's fused SGD takes none.

    Raises InputError for an optimizer without such an update, and for fused kernels.
    """
    if optimizer not in _OF_ROWS:
        raise InputError(
            f"{job} has embeddings with sparse=True, and {optimizer} does not take their gradients.",
            [
                "--optimizer sgd or momentum",
                "optimizer=lambda parameters: ... in the Job, with torch.optim.SparseAdam for them",
            ],
        )
    if kernels == "fused":
        raise InputError(
            f"{job} has embeddings with sparse=True, and PyTorch's fused SGD does not take their gradients.",
            ["leave out --optimizer-kernels: foreach is taken", "sparse=False in the model"],
        )
    assert kernels is None or kernels in KERNELS_OF[optimizer]
    return kernels or "foreach"
