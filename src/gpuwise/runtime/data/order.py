"""The order of rows: a new shuffle each epoch, which depends on the seed and the epoch alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypedDict

import torch


class StreamMark(TypedDict):
    """A position of an iterable from which it continues without reading the earlier samples again.

    Attributes:
        offset: samples of the epoch before this position.
        state: state of the iterable, or of its loader.
    """

    offset: int
    state: object


class Chunk(NamedTuple):
    """Consecutive micro-batches read at once.

    Attributes:
        batch: the data; a tuple of tensors for TensorColumns.
        epoch: epoch of the first sample.
        start: number of the first sample within its epoch.
        micro_batches: number of micro-batches.
        skip: micro-batches that lie before the requested position.
        mark: a position to continue from; None if the source has no state.
    """

    batch: object
    epoch: int
    start: int
    micro_batches: int = 1
    skip: int = 0
    mark: StreamMark | None = None


def shuffled(count: int, *, seed: int, epoch: int) -> torch.Tensor:
    """All row indices in the order of one epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


class Rows(NamedTuple):
    """The row indices of consecutive micro-batches; the other fields are those of Chunk."""

    indices: torch.Tensor
    epoch: int
    start: int
    micro_batches: int
    skip: int

    def chunk(self, batch: object) -> Chunk:
        """The chunk that holds the data of these rows."""
        return Chunk(batch, self.epoch, self.start, self.micro_batches, self.skip)


def chunks(count: int, *, micro_batch: int, per_chunk: int, seed: int, epoch: int, offset: int) -> Iterator[Rows]:
    """Yields row indices from sample `offset` of an epoch on, without end; an incomplete last micro-batch is left out.

    The start of a chunk depends on the position alone. A micro-batch therefore has the same offset in its chunk, and the
    same memory alignment, after a resume. Kernels may round differently by alignment.
    """
    for epoch in itertools.count(epoch):  # noqa: B020
        order = shuffled(count, seed=seed, epoch=epoch)
        first, base = divmod(offset, micro_batch)  # base is 0 except after a resume with another micro-batch size
        total = (count - base) // micro_batch
        for chunk in range(first - first % per_chunk, total, per_chunk):
            start, count_in_chunk = base + chunk * micro_batch, min(per_chunk, total - chunk)
            rows = order[start : start + count_in_chunk * micro_batch]
            yield Rows(rows, epoch, start, count_in_chunk, max(0, first - chunk))
        offset = 0
