"""TensorColumns: data held in memory as tensors with one row per sample. Many micro-batches are gathered at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from gpuwise.errors import JobError
from gpuwise.runtime.data.order import WHOLE, Chunk, DataShare, chunks

# Bytes per gather: many micro-batches of a small model share its cost, and the data still fits a core's cache when used.
CHUNK_BYTES = 1_000_000


@dataclass(frozen=True)
class TensorColumns:
    """Tensors of equal length, with one row per sample.

    Attributes:
        tensors: the columns.
        pack: makes a batch from one tensor per column.
        chosen: indices of the rows in use; None for all rows.
    """

    tensors: tuple[torch.Tensor, ...]
    pack: Callable[[tuple[torch.Tensor, ...]], object]
    chosen: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.tensors[0] if self.chosen is None else self.chosen)

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copies these rows of each column into new memory."""
        rows = rows if self.chosen is None else self.chosen[rows]
        return tuple(tensor.index_select(0, rows) for tensor in self.tensors)

    def example(self) -> object:
        return self.pack(self.gather(torch.arange(1)))

    def read(self, *, micro_batch: int, seed: int, epoch: int, offset: int, share: DataShare = WHOLE) -> Iterator[Chunk]:
        """Yields a rank's chunks from a position on, without end; `split` divides a chunk into micro-batches."""
        row_bytes = sum(t[:1].numel() * t.element_size() for t in self.tensors)
        per_chunk = max(1, CHUNK_BYTES // max(1, row_bytes * micro_batch))
        at = {"micro_batch": micro_batch, "seed": seed, "epoch": epoch, "offset": offset}
        for rows in chunks(len(self), per_chunk=per_chunk, share=share, **at):
            yield rows.chunk(self.gather(rows.indices))

    def split(self, gathered: tuple[torch.Tensor, ...], *, micro_batch: int) -> list[object]:
        """The micro-batches of a chunk, which do not overlap in memory.

        `unsafe_split` gives each its own version counter, so an in-place change of one cannot invalidate the gradients of
        another.
        """
        return [self.pack(parts) for parts in zip(*(torch.unsafe_split(t, micro_batch) for t in gathered), strict=True)]

    def close(self) -> None:
        pass


def columns_of(data: object) -> TensorColumns | None:
    """The data as columns; None if it must be read sample by sample.

    Raises JobError for columns of different lengths, or when only some entries of a dict are columns.
    """
    if type(data) is Subset and (inner := columns_of(data.dataset)) is not None:
        chosen = torch.as_tensor(data.indices)
        return TensorColumns(inner.tensors, inner.pack, chosen if inner.chosen is None else inner.chosen[chosen])
    if isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__:
        data = data.tensors
    if isinstance(data, torch.Tensor | np.ndarray):
        return _of_equal_length({"data": data}, lambda parts: parts[0])
    if isinstance(data, Mapping):
        names = list(data)
        odd = next((name for name in names if not _is_column(data[name])), None)
        if odd is not None and any(isinstance(name, str) for name in names):
            kind = type(data[odd]).__name__
            raise JobError(
                f"the job's data is a {type(data).__name__} whose {odd!r} is a {kind}, not a column of numbers.",
                ["a dict of tensors or arrays, one row a sample", f"one entry of it: data[{odd!r}]"],
            )
        return (
            None
            if odd is not None or not names
            else _of_equal_length(dict(data), lambda parts: dict(zip(names, parts, strict=True)))
        )
    if isinstance(data, tuple) and data and all(_is_column(column) for column in data):
        return _of_equal_length(dict(enumerate(data)), lambda parts: parts)
    return None


def _is_column(value: object) -> bool:
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def _of_equal_length(named: Mapping[object, object], pack: Callable[[tuple[torch.Tensor, ...]], object]) -> TensorColumns:
    lengths = {name: len(cast(Sized, column)) for name, column in named.items()}
    if len(set(lengths.values())) > 1:
        raise JobError(f"columns of the job's data differ in length: {lengths}.", ["give each sample a row in each"])
    return TensorColumns(tuple(_tensor(name, column) for name, column in named.items()), pack)


def _tensor(name: object, column: object) -> torch.Tensor:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # rows are copied out, never written to
            return torch.as_tensor(column).detach()
    except TypeError as error:
        raise JobError(f"column {name!r} of the job's data cannot be a tensor: {error}.", ["an array of numbers"]) from error
