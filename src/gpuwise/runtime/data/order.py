"""In what order rows come: shuffled anew each epoch, by the seed and the epoch alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypedDict

import torch


class StreamMark(TypedDict):
    """A place of an iterable to read on from, instead of reading all that comes before it again.

    offset: samples that come before it.
    state: of the iterable, or of its loader.
    """

    offset: int
    state: object


class Chunk(NamedTuple):
    """Consecutive micro-batches read at once.

    batch: what was read; of TensorColumns a tuple of tensors.
    epoch, start: of its first sample.
    micro_batches: how many.
    skip: how many of them come before the position that was asked for.
    mark: a place to continue from; None where there is none.
    """

    batch: object
    epoch: int
    start: int
    micro_batches: int = 1
    skip: int = 0
    mark: StreamMark | None = None


def shuffled(count: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The rows of one epoch, each once."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


class Rows(NamedTuple):
    """The rows of consecutive micro-batches; see Chunk."""

    indices: torch.Tensor
    epoch: int
    start: int
    micro_batches: int
    skip: int

    def chunk(self, batch: object) -> Chunk:
        """What was read of them."""
        return Chunk(batch, self.epoch, self.start, self.micro_batches, self.skip)


def chunks(count: int, *, micro_batch: int, per_chunk: int, seed: int, epoch: int, offset: int) -> Iterator[Rows]:
    """Row indices from sample `offset` of an epoch on, without end; fewer than a micro-batch at its end are left out.

    Where chunks begin follows from the position alone: a micro-batch lies at the same place of its chunk, so at the same
    alignment in memory, whether the run came here or resumed here. Kernels may round differently by alignment.
    """
    for epoch in itertools.count(epoch):  # noqa: B020
        order = shuffled(count, seed=seed, epoch=epoch)
        first, base = divmod(offset, micro_batch)  # base is 0 but after a resume with another micro-batch
        total = (count - base) // micro_batch
        for chunk in range(first - first % per_chunk, total, per_chunk):
            start, count_in_chunk = base + chunk * micro_batch, min(per_chunk, total - chunk)
            rows = order[start : start + count_in_chunk * micro_batch]
            yield Rows(rows, epoch, start, count_in_chunk, max(0, first - chunk))
        offset = 0
