"""States of iterables that continue without reading again, and checksums of samples."""

from __future__ import annotations

import zlib
from typing import Any, Protocol, TypedDict, TypeGuard

import numpy as np
import torch

from gpuwise.runtime.data.samples import leaves


class StreamState(TypedDict):
    """The state of an iterable read in the training process. `of` names its owner: "iterator" or "data"."""

    of: str
    state: object


class Stateful(Protocol):
    """An object that resumes from its state (torchdata's protocol)."""

    def state_dict(self) -> object: ...

    def load_state_dict(self, state: Any, /) -> object: ...


def is_stateful(data: object) -> TypeGuard[Stateful]:
    return hasattr(data, "state_dict") and hasattr(data, "load_state_dict")


def refills(data: object) -> bool:
    """Whether this is a Hugging Face stream with a shuffle buffer; its state omits the buffered samples."""
    parts = [getattr(data, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if "BufferShuffled" in type(part).__name__:
            return True
        if part is not None:
            parts += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
    return False


def is_plain(tree: object) -> bool:
    """Whether a checkpoint can store this tree."""
    if isinstance(tree, dict):
        return all(isinstance(key, str | int) and is_plain(value) for key, value in tree.items())
    if isinstance(tree, list | tuple):
        return all(map(is_plain, tree))
    return isinstance(tree, torch.Tensor | np.ndarray | bytes | str | int | float | bool | None)


def checksum(sample: object) -> int:
    total = 0
    for name, leaf in leaves(sample):
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if leaf.numel() else b""
        if isinstance(leaf, np.ndarray | np.generic):
            leaf = np.ascontiguousarray(leaf).tobytes()
        if isinstance(leaf, str | int | float | bytes):  # the text of other types may contain a memory address
            total = zlib.crc32(name.encode() + repr(leaf).encode(), total)
    return total
