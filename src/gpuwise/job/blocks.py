"""The repeated parts of a model: the units of recompute and of sharding."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

LISTS_LAYERS = "lists_layers"  # attribute of other modules whose children are such blocks: models of Keras


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of any model, in the order of its modules; empty when nothing repeats.

    A block is a child of an `nn.ModuleList`, an `nn.Sequential` or a Keras model that has modules of its own, and whose class
    occurs there at least twice with the same parameter shapes (12 transformer blocks; the bottlenecks of a ResNet, first ones
    of a stage included; encoder and decoder blocks alike). Blocks inside blocks (a mixture's experts) are left out.
    """
    from torch import nn

    if "pipeline_blocks" in vars(model):  # a pipeline's stage, which may have a single one of them
        return list(vars(model)["pipeline_blocks"])
    candidates: dict[str, object] = {}
    shapes: Counter[tuple[object, object]] = Counter()
    for path, container in model.named_modules():
        if type(container) not in (nn.ModuleList, nn.Sequential) and not vars(container).get(LISTS_LAYERS):
            continue
        for name, child in container.named_children():
            signature = tuple((key, tuple(p.shape)) for key, p in child.named_parameters())
            if not signature or not any(child.children()):
                continue
            # Plain containers have no class of their own: what they hold tells them apart.
            kind = signature if type(child) in (nn.ModuleList, nn.Sequential) else type(child)
            candidates[f"{path}.{name}" if path else name] = kind
            shapes[kind, signature] += 1

    repeating = {kind for (kind, _), count in shapes.items() if count > 1}
    chosen: list[nn.Module] = []
    inside = ""  # path of the last chosen block; named_modules goes depth first
    for path, child in model.named_modules():
        if path in candidates and candidates[path] in repeating and not (inside and path.startswith(inside)):
            chosen.append(child)
            inside = path + "."
    return chosen
