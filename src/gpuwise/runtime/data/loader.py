"""MicroBatchLoader: micro-batches for the training loop, from the job's data or from synthetic data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NotRequired, TypeAlias, TypedDict, cast

import torch

from gpuwise.errors import FileFormatError, JobError
from gpuwise.job import Job
from gpuwise.job.job import Batch
from gpuwise.json_types import Json
from gpuwise.notes import Note
from gpuwise.runtime.data.columns import TensorColumns
from gpuwise.runtime.data.kinds import differences
from gpuwise.runtime.data.opening import DataOpener, Source
from gpuwise.runtime.data.order import WHOLE, Chunk, DataShare, Position, StepPositions, StreamMark, shuffled
from gpuwise.runtime.data.prefetch import StreamCopies, ahead
from gpuwise.runtime.data.samples import Samples
from gpuwise.runtime.data.stream_state import checksum
from gpuwise.runtime.data.streams import SavedStream, Stream
from gpuwise.runtime.data.synthetic import Synthetic
from gpuwise.runtime.devices import backend_of
from gpuwise.strategy import HostSettings, Strategy

_CPU = torch.device("cpu")
_HOST = HostSettings()


# A micro-batch, its epoch, its first sample, its mark, and whether it is this rank's.
Taken: TypeAlias = tuple[Batch, int, int, StreamMark | None, bool]
# Epoch and first sample of each micro-batch of a step.
Positions: TypeAlias = list[tuple[int, int]] | StepPositions


class LoaderState(TypedDict):
    """A saved position in a job's data, with a description of that data.

    Attributes:
        kind: "rows", "iterable" or "synthetic".
        seed: seed of the order of samples.
        epoch: epoch of the next sample.
        offset: number of the next sample within its epoch.
        samples: samples in the data set; None for an iterable.
        micro_batch: samples per micro-batch.
        accumulation: micro-batches per optimizer step of one rank.
        data_parallel: ranks that each read their own micro-batches; absent for one.
        mark: the state that an iterable continues from; None if it is read again from the start of the epoch.
        first_sample: checksum of the first sample of an iterable's epoch.
    """

    kind: str
    seed: int
    epoch: int
    offset: int
    samples: int | None
    micro_batch: int
    accumulation: int
    data_parallel: NotRequired[int]
    mark: NotRequired[StreamMark | None]
    first_sample: NotRequired[int | None]


class MicroBatchLoader:
    """The micro-batches of a job, `strategy.micro_batch` samples each, epoch after epoch without end.

    The order depends on `seed` and the epoch alone. Samples left over at the end of an epoch (fewer than a micro-batch)
    are skipped in that epoch. An optimizer step may span two epochs.

    Of several data-parallel ranks each yields its share of every step, and together they yield what a single process with the
    same micro-batch and global batch does. Positions are those of the whole step, and so the same on every rank.

    job.data() returns one of:
        - a map-style dataset
        - an iterable of samples; job.data() is called again for each further epoch
        - a DataLoader, of which the dataset, the collate function and the workers are used
        - columns: a tensor or array, or a dict or tuple of them of equal length

    TensorColumns and a plain TensorDataset are indexed many batches at once.

    The batches are a function of the seed and the position. Workers, reading ahead and a resume do not change them. The
    job's code draws from torch, random and numpy in a separate stream while it reads a batch.

    Attributes:
        samples_per_epoch: samples in an epoch; None if the length of an iterable is unknown.
        synthetic: True when the job has no data.
        notes: notes for the user; reading an iterable may add more.
        reading: whether a step's data is being read.
        reads: reads begun so far. A read that raises leaves the position unchanged.

    Raises JobError when the data is shorter than one global batch, or holds no samples that can be read.
    """

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        host: HostSettings = _HOST,
        *,
        seed: int = 0,
        device: torch.device = _CPU,
        share: DataShare = WHOLE,
    ):
        self.job, self.strategy, self.host, self.seed, self.device = job, strategy, host, seed, device
        self.size, self.accumulation, self.share = strategy.micro_batch, strategy.accumulation, share
        self.notes: list[Note] = []
        self.reading, self.reads = False, 0
        self._positions: Positions = []  # of the latest step
        self._position = Position(0, 0)  # of the next sample
        self._mark: StreamMark | None = None
        self._loaded: LoaderState | None = None  # the loaded position, until the first step
        opener = DataOpener(job, strategy, host, seed=seed, device=device, notes=self.notes)
        self._source, self._ahead = opener.source(), opener.ahead
        self.synthetic = isinstance(self._source, Synthetic)
        self.samples_per_epoch = opener.samples

    @property
    def _micro_batches_per_step(self) -> int:
        """Of all ranks."""
        return self.accumulation * self.share.ranks

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None if self.samples_per_epoch is None else self.samples_per_epoch // self.size

    def epochs(self, samples: int) -> float | None:
        """Passes over the data after this many samples; None if the length of an epoch is unknown."""
        return samples / self.samples_per_epoch if self.samples_per_epoch else None

    def steps(self) -> Iterator[list[Batch]]:
        """Yields this rank's `strategy.accumulation` micro-batches of each optimizer step, from the current position on."""
        stream = self._micro_batches()
        while True:
            yield self._step(stream)

    def state(self) -> LoaderState:
        """The position after the latest step yielded by `steps`, with a description of the data."""
        epoch, offset = self._position
        state: LoaderState = {
            "kind": _kind(self._source),
            "seed": self.seed,
            "epoch": epoch,
            "offset": offset,
            "samples": _length(self._source),
            "micro_batch": self.size,
            "accumulation": self.accumulation,
        }
        if self.share.ranks > 1:
            state["data_parallel"] = self.share.ranks
        if not isinstance(self._source, Stream):
            return state
        if not self._positions:  # nothing was read since the position was loaded
            saved = self._loaded or state
            state["mark"], state["first_sample"] = saved.get("mark"), saved.get("first_sample")
            state["micro_batch"], state["accumulation"] = saved["micro_batch"], saved["accumulation"]
            if "data_parallel" in saved:
                state["data_parallel"] = saved["data_parallel"]
            return state
        state["mark"] = self._source.mark() if self._source.at(epoch, offset) else self._mark
        state["first_sample"] = self._source.first_sample if self._source.epoch == epoch else None
        return state

    def load(self, state: LoaderState) -> None:
        """Continues from a saved position; call `steps` again after this.

        The position counts samples, so a different micro-batch size continues from the same sample. Raises JobError when
        the data or the global batch differs; FileFormatError when `state` is not a position.
        """
        _check_position(state)
        _check_same_data(state, self._source)
        micro_batch, micro_batches = state["micro_batch"], state["accumulation"] * state.get("data_parallel", 1)
        if micro_batch * micro_batches != self.size * self._micro_batches_per_step:
            accumulation = max(1, micro_batches // self.share.ranks)
            raise JobError(
                f"the run began with {micro_batch} × {micro_batches} samples a step, "
                f"now it is {self.size} × {self._micro_batches_per_step}.",
                [f"--micro-batch {micro_batch} --accumulate {accumulation}", "a new run in another folder"],
            )
        self._source.close()
        self.seed, self._position, self._positions = state["seed"], Position(state["epoch"], state["offset"]), []
        self._loaded = state

    @property
    def positions(self) -> Positions:
        """Epoch and first sample of each micro-batch of the latest step, of all ranks; the argument of `where`."""
        return self._positions

    def where(self, positions: Positions) -> dict[str, object]:
        """Describes the data of a step: each micro-batch's epoch, its number in that epoch and the indices of its samples
        (for an iterable, the number of samples before each)."""
        micro_batches = []
        for epoch, start in positions.listed() if isinstance(positions, StepPositions) else positions:
            rows = list(range(start, start + self.size))
            if isinstance(self._source, TensorColumns | Samples):
                rows = shuffled(len(self._source), seed=self.seed, epoch=epoch)[rows].tolist()
            micro_batches.append({"epoch": epoch, "micro_batch": start // self.size, "samples": rows})
        return {"seed": self.seed, "micro_batches": micro_batches}

    def description(self) -> dict[str, Json]:
        """What the data is, to be compared with that of other ranks: its kind and length, and a checksum of its first sample.

        A stream has no checksum before it is read.
        """
        plain: dict[str, Json] = {"kind": _kind(self._source), "samples": _length(self._source)}
        if isinstance(self._source, TensorColumns | Samples):
            plain["checksum of a sample"] = checksum(self._source.example())
        return plain

    def waits_for(self) -> str | None:
        """The worker process that delivers the next data, such as "worker process 1 (pid 4711)"; None without workers."""
        processes = self._source.processes if isinstance(self._source, Samples | Stream) else None
        return None if processes is None else processes.next_of()

    def close(self) -> None:
        """Ends worker processes, if there are any."""
        self._source.close()

    def _step(self, stream: Iterator[Taken]) -> list[Batch]:
        self.reads += 1
        self.reading = True
        # A stream yields other ranks' micro-batches, too: how long an epoch is shows while it is read.
        reads_all = isinstance(self._source, Stream)
        try:
            taken = list(itertools.islice(stream, self._micro_batches_per_step if reads_all else self.accumulation))
        finally:
            self.reading = False
        if reads_all or self.share.ranks == 1:
            self._positions = [(epoch, start) for _, epoch, start, *_ in taken]
            _, epoch, start, self._mark, _ = taken[-1]
            self._position = Position(epoch, start + self.size)
        else:
            micro_batches, samples = self._micro_batches_per_step, _length(self._source)
            self._positions = StepPositions(self._position, micro_batches, self.size, samples)
            self._position = self._position.after(micro_batches, of=self.size, samples=samples)
        return [batch for batch, *_, own in taken if own]

    def _micro_batches(self) -> Iterator[Taken]:
        saved = self.state()
        at = {"micro_batch": self.size, "seed": self.seed, "epoch": saved["epoch"], "offset": saved["offset"]}
        if isinstance(self._source, Stream):
            before = SavedStream(saved.get("mark"), saved.get("first_sample"), saved["micro_batch"])
            chunks = self._looked_at(self._source.read(**at, share=self.share, before=before))
        else:
            chunks = self._source.read(**at, share=self.share)
        if backend_of(self.device).copies_overlap:
            pinned = self.host.pinned_memory is not False
            chunks = ahead(chunks, StreamCopies(self.device, pinned=pinned), micro_batches=self._ahead)
        if not isinstance(self._source, TensorColumns):
            for chunk in chunks:
                yield chunk.batch, chunk.epoch, chunk.start, chunk.mark, chunk.micro_batches > 0
            return
        apart = self.size * self.share.ranks
        for chunk in chunks:
            batches: list[Batch] = self._source.split(cast("tuple[torch.Tensor, ...]", chunk.batch), micro_batch=self.size)
            for number in range(chunk.skip, chunk.micro_batches):
                yield batches[number], chunk.epoch, chunk.start + number * apart, None, True
                batches[number] = None  # frees a batch after its use

    def _looked_at(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Compares a stream's first batch of this rank with the job's example batch; yields all chunks."""
        looked = False
        for chunk in chunks:
            if chunk.micro_batches and not looked:
                looked = True
                self.notes += [note for note in differences(self.job, chunk.batch) if note not in self.notes]
            yield chunk


def _kind(source: Source) -> str:
    return "synthetic" if isinstance(source, Synthetic) else "iterable" if isinstance(source, Stream) else "rows"


def _length(source: Source) -> int | None:
    return len(source) if isinstance(source, TensorColumns | Samples) else None


def _check_same_data(saved: LoaderState, source: Source) -> None:
    """Raises JobError when a position was saved in data of another kind or length."""
    then, now = saved["kind"], _kind(source)
    if then == now:
        then, now = (f"{count} samples" for count in (saved["samples"], _length(source)))
    if then != now:
        raise JobError(
            f"the job's data is not what the run began with: then it was {then}, now it is {now}.",
            ["the data the run began with", "a new run in another folder"],
        )


def _check_position(state: Mapping[str, object]) -> None:
    numbers = [state.get(name) for name in ("seed", "epoch", "offset", "micro_batch", "accumulation")]
    whole = [number for number in numbers if isinstance(number, int)]
    if len(whole) < len(numbers) or min(whole[1:]) < 0 or not {"kind", "samples"} <= state.keys():
        raise FileFormatError("the checkpoint's position in the data cannot be read.", ["an older checkpoint of the run"])
