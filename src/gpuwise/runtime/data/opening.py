"""Opens a job's data as a source of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from contextlib import suppress
from functools import partial
from typing import cast

import torch
from torch.utils.data import DataLoader

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.notes import Note
from gpuwise.notes import data as data_notes
from gpuwise.runtime.data.columns import TensorColumns, columns_of
from gpuwise.runtime.data.draws import draws_of
from gpuwise.runtime.data.kinds import differences, is_stream, loader_notes, refuse_batches, unwrapped
from gpuwise.runtime.data.samples import Collate, MapStyle, Samples
from gpuwise.runtime.data.streams import Stream
from gpuwise.runtime.data.synthetic import Synthetic
from gpuwise.runtime.devices import backend_of
from gpuwise.strategy import HostSettings, Strategy

Source = Synthetic | TensorColumns | Samples | Stream
READ_AHEAD = 2  # default number of micro-batches in flight to a GPU, and per worker process
_OPENING = -2  # replaces the offset of a micro-batch in the seed for draws made by job.data()


class DataOpener:
    """Opens a job's data: once, or for each epoch if it is an iterable.

    Attributes:
        ahead: micro-batches in flight to the device.
        samples: samples in an epoch; None if unknown.
        notes: list that receives notes for the user.
    """

    def __init__(self, job: Job, strategy: Strategy, host: HostSettings, *, seed: int, device: torch.device, notes: list[Note]):
        self.job, self.strategy, self.host, self.seed, self.notes = job, strategy, host, seed, notes
        self.copies_ahead = backend_of(device).copies_overlap
        self.samples = job.samples
        self.ahead = 0
        if self.copies_ahead:
            self.ahead = READ_AHEAD if host.prefetch is None else host.prefetch

    def source(self) -> Source:
        """Opens the data. Raises JobError when it is shorter than one global batch, or holds no samples that can be read."""
        if self.job.data is None:
            self.notes.append(data_notes.synthetic_data())
            return Synthetic(self.job)
        data, collate, loader = unwrapped(self._data(self.seed, epoch=0))
        if loader is not None:
            self.notes += loader_notes(loader)
        columns = columns_of(data)
        if columns is not None:
            self._note_unused(0)
            return self._checked(columns)
        if is_stream(data):
            return self._stream(data, collate, loader)
        workers = self._workers(loader)
        self._note_unused(workers)
        rows = cast(MapStyle, data)
        return self._checked(Samples(rows, collate, workers=workers, ahead=self._ahead_of_each(workers, loader), loader=loader))

    def epoch_ended(self, epoch: int, count: int) -> None:
        """Compares the sample count of an iterable's epoch with the number needed and with the iterable's own length."""
        check_length(count, self.strategy)
        if self.samples is not None and count != self.samples:
            self.notes.append(data_notes.other_epoch_length(epoch=epoch + 1, samples=count, announced=self.samples))
            self.samples = count  # the note is added once

    def _checked(self, source: TensorColumns | Samples) -> TensorColumns | Samples:
        count = len(source)
        if self.job.samples is not None and self.job.samples != count:
            self.notes.append(data_notes.other_number_of_samples(announced=self.job.samples, samples=count))
        self.samples = count
        check_length(count, self.strategy)
        self.notes += differences(self.job, source.example())
        if left_over := count % self.strategy.micro_batch:
            self.notes.append(data_notes.samples_left_over(left_over=left_over, samples=count))
        return source

    def _stream(self, data: Iterable[object], collate: Collate, loader: DataLoader[object] | None) -> Stream:
        workers = 0 if loader is None else self._workers(loader)
        self._note_unused(workers)
        if self.samples is None and hasattr(data, "__len__"):
            with suppress(TypeError):  # some iterables have a length only if their parts do
                self.samples = len(cast(Sized, data))
        first = [(data, loader)]  # an iterator can be used once

        def opened(seed: int, epoch: int) -> tuple[Iterable[object], DataLoader[object] | None]:
            if (seed, epoch) == (self.seed, 0) and first:
                return first.pop()
            data, _, loader = unwrapped(self._data(seed, epoch=epoch))
            return cast(Iterable[object], data), loader

        return Stream(
            opened,
            collate,
            workers=workers,
            ahead=self._ahead_of_each(workers, loader),
            marks=self.ahead > 0,
            notes=self.notes,
            look=partial(refuse_batches, self.job),
            ended=self.epoch_ended,
        )

    def _data(self, seed: int, *, epoch: int) -> object:
        assert self.job.data is not None
        with draws_of(seed, epoch, _OPENING):
            return self.job.data()

    def _workers(self, loader: DataLoader[object] | None) -> int:
        """Worker processes: from the settings, else from the job's loader; at least one if reading ahead needs it."""
        if self.host.loader_workers is not None:
            return self.host.loader_workers
        workers = 0 if loader is None else loader.num_workers
        return workers or (1 if self.host.prefetch and not self.copies_ahead else 0)

    def _ahead_of_each(self, workers: int, loader: DataLoader[object] | None) -> int:
        if self.host.prefetch is None:
            return getattr(loader, "prefetch_factor", None) or READ_AHEAD
        return max(1, math.ceil(self.host.prefetch / max(1, workers)))

    def _note_unused(self, workers: int) -> None:
        """Adds notes on settings without effect."""
        if self.host.loader_workers and not workers:
            self.notes.append(data_notes.no_worker_processes())
        if self.host.prefetch and not workers and not self.copies_ahead:
            self.notes.append(data_notes.nothing_read_ahead())
        if self.host.pinned_memory and not self.copies_ahead:
            self.notes.append(data_notes.no_pinned_memory())


def check_length(count: int, strategy: Strategy) -> None:
    """Raises JobError when an epoch is shorter than an optimizer step."""
    micro_batch, accumulation, ranks = strategy.micro_batch, strategy.accumulation, strategy.mesh.data_parallel
    if count < strategy.global_batch:
        smaller = f"a smaller global batch, e.g. --micro-batch {max(1, count // (accumulation * ranks))}"
        if count < accumulation * ranks:
            smaller += " --accumulate 1"
        if count < ranks:
            smaller = f"fewer data-parallel ranks: {count} or less"
        raise JobError(
            f"the job's data has {count:,} samples, one optimizer step takes {strategy.global_batch:,} "
            f"({micro_batch} a micro-batch × {accumulation}{f' × {ranks} ranks' if ranks > 1 else ''}).",
            [smaller, "more data"] if count else ["data with samples in it"],
        )
