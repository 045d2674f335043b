"""Micro-batches for the training loop: from the job's data, shuffled anew each epoch, or synthetic when it has none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from gpuwise.errors import JobError
from gpuwise.job import Job, checked_batch
from gpuwise.job.job import named_tensors
from gpuwise.strategy import Strategy

# A job without data trains on this many example batches in turn: enough to defeat caches, little to hold.
SYNTHETIC_BATCHES = 4


class MicroBatches:
    """The micro-batches of a job, `strategy.micro_batch` samples each, epoch after epoch without end.

    The order depends on `seed` and the epoch alone. Samples left over at the end of an epoch, fewer than a micro-batch,
    are skipped in that epoch; the next shuffle gives them another chance. An optimizer step may span two epochs.

    job.data() may be a map-style dataset, an iterable of samples, a DataLoader (its dataset and collate function are
    taken), or columns: a tensor, or a dict or tuple of tensors of equal length. Columns and a plain TensorDataset are
    indexed a whole batch at once.

    Attributes:
        samples_per_epoch: None where nothing says how many an iterable has.
        synthetic: True when the job has no data.
        notes: what the user should know, one sentence each.

    Raises JobError when the data is shorter than one global batch, or is nothing to take samples from.
    """

    def __init__(self, job: Job, strategy: Strategy, *, seed: int = 0):
        self.job, self.seed = job, seed
        self.size, self.accumulation = strategy.micro_batch, strategy.accumulation
        self.notes: list[str] = []
        self.samples_per_epoch = job.samples
        self._fetch: Callable[[torch.Tensor], Any] | None = None
        self._collate: Callable[[list[Any]], Any] = default_collate
        self.synthetic = job.data is None
        if job.data is None:
            self.notes.append("the job has no data: it trains on synthetic batches, so its loss means nothing.")
        else:
            self._open(job.data())

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None if self.samples_per_epoch is None else self.samples_per_epoch // self.size

    def steps(self) -> Iterator[list[Any]]:
        """What one optimizer step takes, again and again: a list of `strategy.accumulation` micro-batches."""
        stream = self._synthetic() if self.synthetic else self._shuffled() if self._fetch else self._in_order()
        while True:
            yield list(itertools.islice(stream, self.accumulation))

    def _open(self, data: Any) -> None:
        if isinstance(data, DataLoader):
            self.notes.append("data is a DataLoader: its dataset is taken; the batch size is the strategy's.")
            if data.batch_size is not None:
                self._collate = data.collate_fn
            data = data.dataset
        self._data = data
        count, fetch = _columns(data) or self._samples_of(data)
        if count is not None and fetch is not None:
            self._fetch = fetch
            if self.job.samples not in (None, count):
                self.notes.append(f"the job says {self.job.samples:,} samples an epoch, its data has {count:,}.")
            self.samples_per_epoch = count
            self._check_length(count)
            self.notes += _differences(self.job, fetch(torch.arange(1)))
            if left_over := count % self.size:
                self.notes.append(f"{left_over} of {count:,} samples are left over each epoch.")

    def _samples_of(self, data: Any) -> tuple[int | None, Callable[[torch.Tensor], Any] | None]:
        """Length and batch fetch of a map-style dataset; (None, None) for an iterable."""
        if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            # PyTorch's protocol for datasets that read many samples at once
            many = getattr(data, "__getitems__", lambda indices: [data[i] for i in indices])
            return len(data), lambda indices: self._collate(many(indices.tolist()))
        if hasattr(data, "__iter__"):
            return None, None
        raise JobError(f"the job's data is a {type(data).__name__}: neither a dataset nor an iterable of samples.",
                       ["give a map-style Dataset, or a dict of tensors of equal length"])  # fmt: skip

    def _shuffled(self) -> Iterator[Any]:
        assert self._fetch is not None
        assert self.samples_per_epoch is not None
        for epoch in itertools.count():
            order = torch.randperm(self.samples_per_epoch, generator=torch.Generator().manual_seed(self.seed + epoch))
            for start in range(0, self.samples_per_epoch - self.size + 1, self.size):
                yield self._fetch(order[start : start + self.size])

    def _in_order(self) -> Iterator[Any]:
        """An iterable, as it comes; job.data() is called again for each further epoch."""
        assert self.job.data is not None
        data = self._data
        while True:
            source, seen = iter(data), 0
            while len(samples := list(itertools.islice(source, self.size))) == self.size:
                seen += self.size
                yield self._collate(samples)
            self._check_length(seen + len(samples))
            data = self.job.data()
            data = data.dataset if isinstance(data, DataLoader) else data

    def _synthetic(self) -> Iterator[Any]:
        return itertools.cycle([checked_batch(self.job, self.size) for _ in range(SYNTHETIC_BATCHES)])

    def _check_length(self, count: int) -> None:
        step = self.size * self.accumulation
        if count < step:
            smaller = f"a smaller global batch, e.g. --micro-batch {max(1, count // self.accumulation)}"
            if count < self.accumulation:
                smaller += " --accumulate 1"
            raise JobError(f"the job's data has {count:,} samples, one optimizer step takes {step:,} "
                           f"({self.size} a micro-batch × {self.accumulation}).",
                           [smaller, "more data"] if count else ["data with samples in it"])  # fmt: skip


def _columns(data: Any) -> tuple[int, Callable[[torch.Tensor], Any]] | None:
    """Length and batch fetch of tensors that hold all samples, indexed together; None for other data."""
    if isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__:
        data = data.tensors
    if isinstance(data, torch.Tensor):
        column = data
        return len(column), lambda indices: column[indices]
    names = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, tuple) else []
    columns = {name: torch.as_tensor(data[name]) for name in names if hasattr(data[name], "__array__")}
    if not columns or len(columns) < len(names):
        return None
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise JobError(f"columns of the job's data differ in length: {lengths}.", ["give each sample a row in each"])
    count = next(iter(lengths.values()))
    if isinstance(data, dict):
        return count, lambda indices: {name: column[indices] for name, column in columns.items()}
    return count, lambda indices: tuple(column[indices] for column in columns.values())


def _differences(job: Job, sample: Any) -> list[str]:
    """One note when a sample of the data is not shaped like the example batch, which forecasts are made from."""
    with torch.random.fork_rng(devices=[]):  # looking must not change what training draws
        example = {name: (tuple(t.shape[1:]), t.dtype) for name, t in named_tensors(job.batch(1))}
    data = {name: (tuple(t.shape[1:]), t.dtype) for name, t in named_tensors(sample)}
    if example == data:
        return []
    name = next((n for n in {**example, **data} if example.get(n) != data.get(n)), "")
    said, found = (_described(side.get(name)) for side in (example, data))
    return [f"the data differs from the example batch: {name} is {found} in the data, {said} in the example; "
            "a forecast is about the example."]  # fmt: skip


def _described(tensor: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "absent" if tensor is None else f"{list(tensor[0])} {str(tensor[1]).removeprefix('torch.')} a sample"
