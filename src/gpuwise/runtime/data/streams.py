"""Streams: data that comes one sample after another, in the order of the iterable that gives it."""

from __future__ import annotations

import copy
import itertools
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypedDict, TypeGuard, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpuwise.errors import JobError
from gpuwise.job.batches import map_tensors
from gpuwise.notes import Note
from gpuwise.notes import data as data_notes
from gpuwise.runtime.data.draws import draws_of, seed_of
from gpuwise.runtime.data.order import Chunk, StreamMark
from gpuwise.runtime.data.samples import Collate, collated, leaves
from gpuwise.runtime.data.workers import Workers, settings

# Where batches are read ahead, how often the stream's state is kept; a resume reads again what came since.
MARK_EVERY_S = 1.0
_OPENING = -1  # stands where a micro-batch's first sample does, in the seeds of what is drawn before the first one


class SavedStream(NamedTuple):
    """What is saved with a position in a stream.

    mark: a place to read on from; None where the stream is read again from the start of the epoch.
    first_sample: checksum of the first sample of the epoch.
    micro_batch: which size the batches before had; None: the same.
    """

    mark: StreamMark | None = None
    first_sample: int | None = None
    micro_batch: int | None = None


class Stream:
    """An iterable as micro-batches, with a position.

    Each epoch is opened anew by `opened(seed, epoch)`, which gives the iterable and, for one that worker processes read, its
    DataLoader. An iterable, or its iterator, with state_dict and load_state_dict (torchdata's protocol, Hugging Face's
    datasets) continues by its state; any other is read again from the start of the epoch to the position, and the same
    batches come if it gives the same samples again. Draws of the iterable's come from the epoch's own stream.

    A mark is {"offset": samples, "state": ...}: a place to continue from. marks: whether to keep them while reading,
    which is needed where batches are read ahead of the position; `mark` makes one otherwise.

    notes: where to put what is found while reading. look: called with the first sample of each epoch; ended: after each
    epoch, with its number and how many samples it had.
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
        before: SavedStream | None = None,
    ) -> Iterator[Chunk]:
        """From a position on, without end.

        Arguments:
            before: what was saved with the position.

        Raises JobError when the iterable has no samples, or fewer than this position.
        """
        mark, first_sample, saved_micro_batch = before or SavedStream()
        for epoch in itertools.count(epoch):  # noqa: B020
            self.epoch, self._offset, self.first_sample = epoch, 0 if mark is None else mark["offset"], first_sample
            source = self._open(epoch, seed=seed, micro_batch=micro_batch, mark=mark)
            kept, kept_at_s = mark, self._clock()
            while True:
                again = self._offset < offset  # what the run before has used already
                size = min(saved_micro_batch or micro_batch, offset - self._offset) if again else micro_batch
                batch, came = source.read(self._offset, size, keep=not again)
                if self._offset == 0 and came:
                    self._look_at(source.first, expected=first_sample)
                if came < size:
                    break
                start, self._offset = self._offset, self._offset + size
                if again:
                    continue
                yield Chunk(batch, epoch, start, mark=kept)
                if self.marks and self._clock() - kept_at_s > MARK_EVERY_S:
                    kept, kept_at_s = self.mark(), self._clock()
            if self._offset < offset or not (self._offset or came):
                raise self._ended(self._offset + came, offset)
            source.close()
            self.ended(epoch, self._offset + came)
            mark, offset, first_sample = None, 0, None

    def at(self, epoch: int, offset: int) -> bool:
        """Whether this is how far the stream was read, so that `mark` is a place to continue from there."""
        return (self.epoch, self._offset) == (epoch, offset)

    def mark(self) -> StreamMark | None:
        """The place reached; None where only reading again leads there."""
        state = self._source and self._source.state()
        # Copied: some iterables hand out the very state they go on changing.
        return None if state is None or not _is_plain(state) else {"offset": self._offset, "state": copy.deepcopy(state)}

    @property
    def processes(self) -> Workers | None:
        """Those that read, where that is not this process."""
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
        self.first_sample = _checksum(sample)
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


class StreamState(TypedDict):
    """The state of an iterable that the training's own process reads. of: "iterator" or "data", whose state it is."""

    of: str
    state: object


class Stateful(Protocol):
    """What continues by its state (torchdata's protocol)."""

    def state_dict(self) -> object: ...

    def load_state_dict(self, state: Any, /) -> object: ...


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
        """The next `size` samples as a batch, and how many came; fewer make no batch, nor does what is not kept."""
        with draws_of(self.seed, self.epoch, offset):
            samples = list(itertools.islice(self._samples, size))
            if offset == 0 and samples:
                self.first = samples[0]
            return collated(samples, self.collate) if keep and len(samples) == size else None, len(samples)

    def state(self) -> StreamState | None:
        for of, part in (("iterator", self._samples), ("data", self._data)):
            if _is_stateful(part) and not _refills(part):
                return {"of": of, "state": part.state_dict()}
        return None

    def close(self) -> None:
        if isinstance(self._samples, Generator):
            self._samples.close()  # its own files, in its own `finally`


class _InWorkerProcesses:
    """An iterable that the workers of the job's DataLoader read, which deliver whole micro-batches."""

    def __init__(self, loader: DataLoader[object], stream: Stream, state: object, micro_batch: int, *, seed: int):
        self.micro_batch = micro_batch
        self.first: object = None
        kind: Any = type(loader) if hasattr(loader, "load_state_dict") else DataLoader  # theirs, such as torchdata's
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
        """See `_InProcess`; here the size is fixed."""
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


def _is_stateful(data: object) -> TypeGuard[Stateful]:
    return hasattr(data, "state_dict") and hasattr(data, "load_state_dict")


def _refills(data: object) -> bool:
    """Whether this is a Hugging Face stream with a shuffle buffer, whose state leaves out what the buffer holds."""
    parts = [getattr(data, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if "BufferShuffled" in type(part).__name__:
            return True
        if part is not None:
            parts += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
    return False


def _is_plain(tree: object) -> bool:
    """Whether a checkpoint can hold this."""
    if isinstance(tree, dict):
        return all(isinstance(key, str | int) and _is_plain(value) for key, value in tree.items())
    if isinstance(tree, list | tuple):
        return all(map(_is_plain, tree))
    return isinstance(tree, torch.Tensor | np.ndarray | bytes | str | int | float | bool | None)


def _checksum(sample: object) -> int:
    total = 0
    for name, leaf in leaves(sample):
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if leaf.numel() else b""
        if isinstance(leaf, np.ndarray | np.generic):
            leaf = np.ascontiguousarray(leaf).tobytes()
        if isinstance(leaf, str | int | float | bytes):  # of anything else the text may hold an address
            total = zlib.crc32(name.encode() + repr(leaf).encode(), total)
    return total
