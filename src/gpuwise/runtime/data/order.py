"""In what order rows come: shuffled anew each epoch, by the seed and the epoch alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


class Chunk(NamedTuple):
    """Consecutive micro-batches read at once.

    batch: what was read, or the indices of its rows; epoch, start: of its first sample; micro_batches: how many;
    skip: how many of them come before the position that was asked for; mark: see `Stream`.
    """

    batch: Any
    epoch: int
    start: int
    micro_batches: int = 1
    skip: int = 0
    mark: Any = None


def shuffled(count: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The rows of one epoch, each once."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


def chunks(count: int, *, micro_batch: int, per_chunk: int, seed: int, epoch: int, offset: int) -> Iterator[Chunk]:
    """Row indices from sample `offset` of an epoch on, without end; fewer than a micro-batch at its end are left out.

    Where chunks begin follows from the position alone: a micro-batch lies at the same place of its chunk, so at the same
    alignment in memory, whether the run came here or resumed here. Kernels may round differently by alignment.
    """
    for epoch in itertools.count(epoch):  # noqa: B020
        order = shuffled(count, seed=seed, epoch=epoch)
        first, base = divmod(offset, micro_batch)  # base is 0 but after a resume with another micro-batch
        total = (count - base) // micro_batch
        for chunk in range(first - first % per_chunk, total, per_chunk):
            start, held = base + chunk * micro_batch, min(per_chunk, total - chunk)
            rows = order[start : start + held * micro_batch]
            yield Chunk(rows, epoch, start, held, max(0, first - chunk))
        offset = 0
