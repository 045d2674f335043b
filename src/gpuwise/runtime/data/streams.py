"""Streams: samples read one after another, in the order of the job's iterable."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import DataLoader

from gpuwise.errors import JobError
from gpuwise.job.batches import map_tensors
from gpuwise.notes import Note
from gpuwise.notes import data as data_notes
from gpuwise.runtime.data.draws import draws_of, seed_of
from gpuwise.runtime.data.order import WHOLE, Chunk, DataShare, StreamMark
from gpuwise.runtime.data.samples import Collate, collated
from gpuwise.runtime.data.stream_state import Stateful, StreamState, checksum, is_plain, is_stateful, refills
from gpuwise.runtime.data.workers import Workers, settings

# Seconds between two marks while batches are read ahead; a resume reads again the samples after the latest mark.
MARK_EVERY_S = 1.0
_OPENING = -1  # replaces the offset of a micro-batch in the seed for draws made before the first sample


class SavedStream(NamedTuple):
    """Data that a checkpoint stores with a position in a stream.

    Attributes:
        mark: the state to continue from; None if the stream is read again from the start of the epoch.
        first_sample: checksum of the first sample of the epoch.
        micro_batch: samples per micro-batch when the position was saved; None if unchanged.
    """

    mark: StreamMark | None = None
    first_sample: int | None = None
    micro_batch: int | None = None


class Stream:
    """Splits an iterable into micro-batches and tracks the position in it.

    An iterable or iterator with state_dict and load_state_dict (torchdata's protocol, Hugging Face's datasets) resumes from
    its state. Any other is read again from the start of the epoch up to the position; the batches repeat if it yields the
    same samples again. The iterable draws its random numbers from the epoch's own stream.

    Arguments:
        opened: opens an epoch: (seed, epoch) to the iterable and, if worker processes read it, its DataLoader.
        marks: whether to record marks while reading; needed if batches are read ahead. `mark` makes one otherwise.
        notes: list that receives notes for the user.
        look: called with the first sample of each epoch.
        ended: called after each epoch with the epoch's number and its number of samples.
    """

    def __init__(
        self,
        opened: Callable[[int, int], tuple[Iterable[object], DataLoader[object] | None]],
        collate: Collate,
        *,
        workers: int = 0,
        ahead: int = 2,
        marks: bool = False,
        notes: list[Note] | None = None,
        look: Callable[[object], None] = lambda sample: None,
        ended: Callable[[int, int], None] = lambda epoch, samples: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.collate, self.workers, self.ahead, self.marks = collate, workers, ahead, marks
        self.notes: list[Note] = [] if notes is None else notes
        self.look, self.ended = look, ended
        self.first_sample: int | None = None  # a checksum of the epoch's first sample
        self._opened, self._clock = opened, clock
        self.epoch = self._offset = 0
        self._source: _InProcess | _InWorkerProcesses | None = None

    def read(
        self,
        *,
        micro_batch: int,
        seed: int,
        epoch: int,
        offset: int,
        share: DataShare = WHOLE,
        before: SavedStream | None = None,
    ) -> Iterator[Chunk]:
        """Yields micro-batches from a position on, where a step begins, without end.

        Every rank reads the whole iterable, whose order nothing else fixes. A micro-batch of another rank is an empty chunk:
        its samples are not collated.

        Arguments:
            share: the micro-batches of this rank.
            before: the data that was saved with the position.

        Raises JobError when the iterable has no samples, or fewer than this position.
        """
        mark, first_sample, saved_micro_batch = before or SavedStream()
        number = 0  # of the next micro-batch, from the position on
        for epoch in itertools.count(epoch):  # noqa: B020
            self.epoch, self._offset, self.first_sample = epoch, 0 if mark is None else mark["offset"], first_sample
            source = self._open(epoch, seed=seed, micro_batch=micro_batch, mark=mark)
            kept, kept_at_s = mark, self._clock()
            while True:
                again = self._offset < offset  # the earlier run has used these samples
                size = min(saved_micro_batch or micro_batch, offset - self._offset) if again else micro_batch
                own = not again and share.owns(number)
                batch, came = source.read(self._offset, size, keep=own)
                if self._offset == 0 and came:
                    self._look_at(source.first, expected=first_sample)
                if came < size:
                    break
                start, self._offset = self._offset, self._offset + size
                if again:
                    continue
                number += 1
                yield Chunk(batch if own else None, epoch, start, micro_batches=int(own), mark=kept)
                if self.marks and self._clock() - kept_at_s > MARK_EVERY_S:
                    kept, kept_at_s = self.mark(), self._clock()
            if self._offset < offset or not (self._offset or came):
                raise self._ended(self._offset + came, offset)
            source.close()
            self.ended(epoch, self._offset + came)
            mark, offset, first_sample = None, 0, None

    def at(self, epoch: int, offset: int) -> bool:
        """Whether the stream was read exactly up to this position; only then does `mark` belong to it."""
        return (self.epoch, self._offset) == (epoch, offset)

    def mark(self) -> StreamMark | None:
        """A mark at the current position; None if the iterable has no state and must be read again."""
        state = self._source and self._source.state()
        # The state is copied because some iterables return an object that they keep changing.
        return None if state is None or not is_plain(state) else {"offset": self._offset, "state": copy.deepcopy(state)}

    @property
    def processes(self) -> Workers | None:
        """The worker processes; None if this process reads."""
        return self._source.batches if isinstance(self._source, _InWorkerProcesses) else None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _open(self, epoch: int, *, seed: int, micro_batch: int, mark: StreamMark | None) -> _InProcess | _InWorkerProcesses:
        self.close()
        state = None if mark is None else mark["state"]
        with draws_of(seed, epoch, _OPENING):
            data, loader = self._opened(seed, epoch)
            if hasattr(data, "set_epoch"):
                data.set_epoch(epoch)
            if loader is not None and self.workers:
                if state is not None:
                    self.notes.append(data_notes.workers_draw_anew())
                self._source = _InWorkerProcesses(loader, self, state, micro_batch, seed=seed_of(seed, epoch, self._offset))
            else:
                self._source = _InProcess(data, self.collate, cast("StreamState | None", state), seed=seed, epoch=epoch)
        return self._source

    def _look_at(self, sample: object, *, expected: int | None) -> None:
        self.look(sample)
        self.first_sample = checksum(sample)
        if expected not in (None, self.first_sample):
            self.notes.append(data_notes.other_samples_after_resume())

    def _ended(self, samples: int, offset: int) -> JobError:
        if samples:
            return JobError(
                f"the job's iterable ended after {samples:,} samples; the run had used {offset:,} of this epoch.",
                ["the data the run began with", "a new run in another folder"],
            )
        if self.epoch:
            return JobError(
                f"the job's iterable has no samples in epoch {self.epoch + 1}: data() gave one that was used up.",
                ["make a new iterable in data() each time it is called", "train for one epoch"],
            )
        return JobError("the job's data has 0 samples.", ["data with samples in it"])


class _InProcess:
    """An iterable that this process reads."""

    def __init__(self, data: Iterable[object], collate: Collate, state: StreamState | None, *, seed: int, epoch: int):
        self.collate, self.seed, self.epoch = collate, seed, epoch
        self.first: object = None
        self._data = data
        if state is not None and state["of"] == "data":
            cast(Stateful, data).load_state_dict(state["state"])
        self._samples = iter(data)
        if state is not None and state["of"] == "iterator":
            cast(Stateful, self._samples).load_state_dict(state["state"])

    def read(self, offset: int, size: int, *, keep: bool) -> tuple[object, int]:
        """The next `size` samples as a batch, and their count. The batch is None if samples are missing or not `keep`."""
        with draws_of(self.seed, self.epoch, offset):
            samples = list(itertools.islice(self._samples, size))
            if offset == 0 and samples:
                self.first = samples[0]
            return collated(samples, self.collate) if keep and len(samples) == size else None, len(samples)

    def state(self) -> StreamState | None:
        for of, part in (("iterator", self._samples), ("data", self._data)):
            if is_stateful(part) and not refills(part):
                return {"of": of, "state": part.state_dict()}
        return None

    def close(self) -> None:
        if isinstance(self._samples, Generator):
            self._samples.close()  # lets its `finally` close its files


class _InWorkerProcesses:
    """An iterable read by the workers of the job's DataLoader, which deliver whole micro-batches."""

    def __init__(self, loader: DataLoader[object], stream: Stream, state: object, micro_batch: int, *, seed: int):
        self.micro_batch = micro_batch
        self.first: object = None
        kind: Any = type(loader) if hasattr(loader, "load_state_dict") else DataLoader  # keeps e.g. torchdata's
        self._loader = kind(
            loader.dataset,
            batch_size=micro_batch,
            drop_last=True,
            collate_fn=stream.collate,
            prefetch_factor=stream.ahead,
            generator=torch.Generator().manual_seed(seed),
            **settings(loader, stream.workers),
        )
        if state is not None:
            self._loader.load_state_dict(state)
        self.batches = Workers(self._loader)

    def read(self, offset: int, size: int, *, keep: bool) -> tuple[object, int]:
        """Like `_InProcess.read`, but `size` must equal `micro_batch`."""
        if size != self.micro_batch:
            raise JobError(
                f"the run began this epoch with worker processes that read micro-batches of {size}; it cannot go on "
                "there with others.",
                [f"--micro-batch {size}", "a new run in another folder"],
            )
        batch = next(self.batches, None)
        if offset == 0:
            self.first = map_tensors(batch, lambda tensor: tensor[0])
        return batch, 0 if batch is None else size

    def state(self) -> object:
        return self._loader.state_dict() if hasattr(self._loader, "state_dict") else None

    def close(self) -> None:
        self.batches.close()
