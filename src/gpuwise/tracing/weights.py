"""weights_of: a model's parameters and buffers by what they do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, PRODUCT, Weights

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_INPUTS_AS_ROWS = "Conv1D"  # linear layers of Transformers' GPT-2
# What routers are called, and the experts beside them: small products that engines keep wide.
_ROUTERS, _EXPERTS = ("router", "gate"), "experts"


def weights_of(model: nn.Module, ran: Collection[str]) -> tuple[Weights, ...]:
    """The weights of a model, those of equal blocks and experts together, each parameter once.

    A matrix is the head where it has as many rows as the embedding and stands outside of the blocks. Of parameters that
    devices share, this device's part counts.

    ran: paths of the modules whose operations were recorded. Blocks that text does not reach, such as those for images, keep
        their width, as in quantized models that are published.
    """
    reached = {path[:end] for path in ran for end in (*(dot.start() for dot in re.finditer(r"\.", path)), len(path))}
    tensors: dict[int, tuple[str, Tensor, list[str]]] = {}
    modules = dict(model.named_modules())
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for path, tensor in named:
        tensors.setdefault(id(tensor), (path, tensor, []))[2].append(path)
    embeddings = {
        id(tensor)
        for _, tensor, paths in tensors.values()
        if tensor.dim() == 2 and any(isinstance(modules[path.rpartition(".")[0]], nn.Embedding) for path in paths)
    }
    words = max((tensors[each][1].shape[0] for each in embeddings), default=0)
    counts: Counter[tuple[str, tuple[int, ...], int, str, bool]] = Counter()
    for each, (path, tensor, paths) in tensors.items():
        role = EMBEDDING if each in embeddings else _role(path, tensor, modules, words=words)
        role = role if _is_reached(path, reached) else OTHER
        tied = role == EMBEDDING and len(paths) > 1
        shape = _local_shape(tensor)
        if type(modules[path.rpartition(".")[0]]).__name__ == _INPUTS_AS_ROWS:
            shape = shape[::-1]
        counts[_NUMBER.sub("*", path), shape, tensor.element_size(), role, tied] += 1
    return tuple(
        Weights(name, shape, count, element_bytes, role, tied)
        for (name, shape, element_bytes, role, tied), count in counts.items()
    )


def _role(path: str, tensor: Tensor, modules: Container[str], *, words: int) -> str:
    """words: rows of the embedding; 0 without one."""
    above, _, name = path.rpartition(".")[0].rpartition(".")
    if tensor.dim() < 2 or path.endswith("bias") or (name in _ROUTERS and f"{above}.{_EXPERTS}" in modules):
        return OTHER
    return HEAD if tensor.shape[0] == words and not _NUMBER.search(path) else PRODUCT


def _is_reached(path: str, reached: Collection[str]) -> bool:
    """Whether the blocks that a parameter is in ran, if it is in any."""
    numbered = _NUMBER.search(path)
    return numbered is None or path[: numbered.start() - 1] in reached


def _local_shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.to_local().shape if isinstance(tensor, DTensor) else tensor.shape)
