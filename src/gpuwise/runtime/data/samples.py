"""Samples: data read one sample at a time by index and collated into batches."""

from __future__ import annotations

import numbers
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from gpuwise.errors import JobError
from gpuwise.job.job import Batch
from gpuwise.runtime.data.draws import draws_of
from gpuwise.runtime.data.order import WHOLE, Chunk, DataShare, Rows, chunks
from gpuwise.runtime.data.workers import Workers

Collate = Callable[[list[object]], object]
Index: TypeAlias = tuple[int, int, int, list[int]]  # seed, epoch, first sample, and rows of a micro-batch
# Types that default_collate turns into batches; it leaves text and bytes unchanged.
_LEAVES = (torch.Tensor, np.ndarray, np.generic, numbers.Number, str, bytes)

OWN_COLLATE = "a collate function of your own: data=lambda: DataLoader(dataset, collate_fn=...)"


class MapStyle(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: Any, /) -> object: ...


class Reader:
    """Reads micro-batches of a map-style data set, in this process or in a worker.

    Itself a data set, its items are micro-batches.
    """

    def __init__(self, data: MapStyle, collate: Collate):
        self.data, self.collate = data, collate

    def __getitem__(self, index: Index) -> Batch:
        seed, epoch, start, rows = index
        with draws_of(seed, epoch, start):
            return collated(self._samples(rows), self.collate)

    def _samples(self, rows: list[int]) -> list[object]:
        many = getattr(self.data, "__getitems__", None)  # PyTorch's protocol for data that reads many samples at once
        if many is not None:
            return many(rows)
        samples = []
        for row in rows:
            try:
                samples.append(self.data[row])
            except IndexError as error:
                raise JobError(
                    f"the job's data says it has {len(self.data):,} samples; reading sample {row} raised IndexError: {error}.",
                    ["correct its __len__", "samples for every index below it"],
                ) from error
        return samples


class Samples:
    """A map-style data set, in shuffled order.

    Arguments:
        workers: worker processes; with 0 this process reads.
        ahead: micro-batches that each worker reads ahead.
    """

    def __init__(
        self, data: MapStyle, collate: Collate, *, workers: int = 0, ahead: int = 2, loader: DataLoader[object] | None = None
    ):
        self.reader, self.workers, self.ahead, self.loader = Reader(data, collate), workers, ahead, loader
        self.processes: Workers | None = None

    def __len__(self) -> int:
        return len(self.reader.data)

    def example(self) -> object:
        return self.reader[0, 0, 0, [0]]

    def read(self, *, micro_batch: int, seed: int, epoch: int, offset: int, share: DataShare = WHOLE) -> Iterator[Chunk]:
        """Yields a rank's micro-batches from a position on, without end."""
        self.close()
        at = {"micro_batch": micro_batch, "seed": seed, "epoch": epoch, "offset": offset}
        rows_read = chunks(len(self), per_chunk=1, share=share, **at)
        if not self.workers:
            for rows in rows_read:
                yield rows.chunk(self.reader[seed, rows.epoch, rows.start, rows.indices.tolist()])
        sent: deque[Rows] = deque()

        def indices() -> Iterator[Index]:
            for rows in rows_read:
                sent.append(rows)
                yield seed, rows.epoch, rows.start, rows.indices.tolist()

        self.processes = Workers.of_samples(self.reader, indices(), workers=self.workers, ahead=self.ahead, loader=self.loader)
        for batch in self.processes:  # in the order of the indices
            yield sent.popleft().chunk(batch)

    def close(self) -> None:
        if self.processes is not None:
            self.processes.close()
            self.processes = None


def collated(samples: list[object], collate: Collate) -> object:
    """Collates samples into a batch. Raises JobError, with the part at fault and the reason, when they do not collate."""
    try:
        return collate(samples)
    except Exception as error:
        if collate is default_collate and (why := _why_not(samples)) is not None:
            raise why from error
        raise


def _why_not(samples: list[object]) -> JobError | None:
    first = dict(leaves(samples[0]))
    for name, leaf in first.items():
        if not isinstance(leaf, _LEAVES):
            return JobError(
                f"{name} of the job's data is a {type(leaf).__name__}, which is no tensor.",
                ["make tensors or numbers of it in the data set", OWN_COLLATE],
            )
    for other in samples[1:]:
        parts = dict(leaves(other))
        odd = next((name for name in {**first, **parts} if (name in first) != (name in parts)), None)
        if odd is not None:
            return JobError(
                f"samples of the job's data differ: {odd} is in some of them only, so they make no batch.",
                ["samples with the same parts", OWN_COLLATE],
            )
        for name, leaf in first.items():
            one, two = (tuple(getattr(side, "shape", ())) for side in (leaf, parts[name]))
            if one != two:
                return JobError(
                    f"samples of the job's data differ in shape: {name} is {list(one)} in one and {list(two)} in "
                    "another, so they make no batch.",
                    ["pad or crop them to one shape", OWN_COLLATE],
                )
    return None


def leaves(value: object, name: str = "sample") -> Iterator[tuple[str, object]]:
    """The leaves of nested dicts, lists and tuples with their paths, such as ("sample['x'][0]", 3)."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{name}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}[{index}]")
    else:
        yield name, value
