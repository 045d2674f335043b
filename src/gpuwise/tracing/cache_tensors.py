"""The tensors that a job's generate returns as its cache."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, of this device's parts where several share one. Tied ones count once; keys and values that are views of
    one product's result count each."""
    parts = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    sizes = {(part.untyped_storage()._cdata, part.storage_offset()): part.numel() * part.element_size() for part in parts}
    return sum(sizes.values())


def tensors_of(cache: object) -> list[Tensor]:
    """The tensors of a cache: in containers, and in attributes of objects."""
    tensors: dict[int, Tensor] = {}
    seen: set[int] = set()

    def visit(value: object) -> None:
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif id(value) not in seen:
            seen.add(id(value))
            for leaf in tree_leaves(value):
                if leaf is not value:
                    visit(leaf)
            for inner in getattr(value, "__dict__", {}).values():
                visit(inner)

    visit(cache)
    return list(tensors.values())
