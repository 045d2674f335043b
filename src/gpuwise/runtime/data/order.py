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
    """Micro-batches of a rank that are read at once.

    Attributes:
        batch: the data; a tuple of tensors for TensorColumns.
        epoch: epoch of the first sample.
        start: number of the first sample within its epoch.
        micro_batches: number of micro-batches; 0 for one of another rank that a stream has passed over.
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


class DataShare(NamedTuple):
    """The micro-batches of one data-parallel rank: every `ranks`-th, from number `rank` on, counted from the start of a step.

    A step takes a multiple of `ranks` micro-batches. Which rank reads a micro-batch therefore depends on the position alone,
    and all ranks together read what a single process reads.
    """

    rank: int = 0
    ranks: int = 1

    def owns(self, number: int) -> bool:
        """Whether this rank takes micro-batch `number`, counted from the start of a step."""
        return number % self.ranks == self.rank


WHOLE = DataShare()


class Rows(NamedTuple):
    """The row indices of a rank's next micro-batches; the other fields are those of Chunk."""

    indices: torch.Tensor
    epoch: int
    start: int
    micro_batches: int
    skip: int

    def chunk(self, batch: object) -> Chunk:
        """The chunk that holds the data of these rows."""
        return Chunk(batch, self.epoch, self.start, self.micro_batches, self.skip)


def chunks(
    count: int, *, micro_batch: int, per_chunk: int, seed: int, epoch: int, offset: int, share: DataShare = WHOLE
) -> Iterator[Rows]:
    """Yields row indices of a rank from sample `offset` of an epoch on, where a step begins, without end.

    An incomplete last micro-batch of an epoch is left out. The start of a chunk depends on the position alone. A micro-batch
    therefore has the same offset in its chunk, and the same memory alignment, after a resume. Kernels may round differently
    by alignment.
    """
    turn = share.rank  # micro-batches of other ranks before this one's next
    for epoch in itertools.count(epoch):  # noqa: B020
        order = shuffled(count, seed=seed, epoch=epoch)
        first, base = divmod(offset, micro_batch)  # base is 0 except after a resume with another micro-batch size
        total = (count - base) // micro_batch
        own = range((first + turn) % share.ranks, total, share.ranks)
        before = len(range(own.start, first + turn, share.ranks))  # of this epoch, taken before the position
        micro_batches = order[base : base + total * micro_batch].view(total, micro_batch)
        for chunk in range(before - before % per_chunk, len(own), per_chunk):
            part = own[chunk : chunk + per_chunk]
            rows = micro_batches[part.start : part.stop : part.step].reshape(-1)
            yield Rows(rows, epoch, base + part.start * micro_batch, len(part), max(0, before - chunk))
        turn = (turn - (total - first)) % share.ranks
        offset = 0


class StepPositions(NamedTuple):
    """The epoch and first sample of each micro-batch of a step, made when they are asked for.

    Attributes:
        start: where the step begins.
        micro_batches: of all ranks together.
        micro_batch: samples of each.
        samples: samples of an epoch; None for one without end.
    """

    start: Position
    micro_batches: int
    micro_batch: int
    samples: int | None

    def listed(self) -> list[tuple[int, int]]:
        size = self.micro_batch
        ends = [self.start.after(n, of=size, samples=self.samples) for n in range(1, self.micro_batches + 1)]
        return [(epoch, offset - size) for epoch, offset in ends]


class Position(NamedTuple):
    """A position between two micro-batches: an epoch, and the samples of it before the position."""

    epoch: int
    offset: int

    def after(self, micro_batches: int, *, of: int, samples: int | None) -> Position:
        """The position so many micro-batches of `of` samples later, in data of `samples` (None: one epoch without end)."""
        epoch, offset = self
        while samples is not None and (left := max(0, samples - offset) // of) < micro_batches:
            epoch, offset, micro_batches = epoch + 1, 0, micro_batches - left
        return Position(epoch, offset + micro_batches * of)
