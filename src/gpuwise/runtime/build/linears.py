"""Selects the linear layers of a model for adapters or a lower precision."""

from __future__ import annotations

from torch import nn

from gpuwise.job.blocks import repeated_blocks


def inner_linears(model: nn.Module) -> list[str]:
    """Paths of the model's linear layers without its output head, which is the last one if it is outside the repeated blocks.

    Subclasses of `nn.Linear` are left out, because attention may read such a layer's weight directly and would miss the
    replacement.
    """
    inside = {id(module) for block in repeated_blocks(model) for module in block.modules()}
    linears = [(path, module) for path, module in model.named_modules() if type(module) is nn.Linear]
    if linears and id(linears[-1][1]) not in inside:
        linears.pop()
    return [path for path, _ in linears]
