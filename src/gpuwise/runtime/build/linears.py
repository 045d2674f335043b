"""Which linear layers of a model an adapter or a lower precision may take over."""

from __future__ import annotations

from torch import nn

from gpuwise.job.blocks import repeated_blocks


def inner_linears(model: nn.Module) -> list[str]:
    """Paths of the model's linear layers but its output head: the last one, if it stands outside the repeated blocks.

    Subclasses of `nn.Linear` are left out: attention that reads such a layer's weight itself would not see it replaced.
    """
    inside = {id(module) for block in repeated_blocks(model) for module in block.modules()}
    linears = [(path, module) for path, module in model.named_modules() if type(module) is nn.Linear]
    if linears and id(linears[-1][1]) not in inside:
        linears.pop()
    return [path for path, _ in linears]
