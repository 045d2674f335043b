"""MicroBatchLoader: micro-batches for the training loop, from the job's data or synthetic when it has none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NotRequired, TypeAlias, TypedDict, cast

import torch

from gpuwise.errors import FileFormatError, JobError
from gpuwise.job import Job
from gpuwise.job.job import Batch
from gpuwise.notes import Note
from gpuwise.runtime.data.columns import TensorColumns
from gpuwise.runtime.data.kinds import differences
from gpuwise.runtime.data.opening import DataOpener, Source
from gpuwise.runtime.data.order import Chunk, StreamMark, shuffled
from gpuwise.runtime.data.prefetch import CudaCopies, ahead
from gpuwise.runtime.data.samples import Samples
from gpuwise.runtime.data.streams import SavedStream, Stream
from gpuwise.runtime.data.synthetic import Synthetic
from gpuwise.strategy import HostSettings, Strategy

_CPU = torch.device("cpu")
_HOST = HostSettings()


# A micro-batch, its epoch and first sample, and the mark that it came with.
Taken: TypeAlias = tuple[Batch, int, int, StreamMark | None]


class LoaderState(TypedDict):
    """A position in the data of a job, as it is saved, and what data it is a position in.

    kind: "rows", "iterable" or "synthetic".
    epoch, offset: of the sample that comes next.
    samples: in all; None for an iterable.
    mark: a place of an iterable to read on from; None where it is read again from the start of the epoch.
    first_sample: checksum of the first sample of an iterable's epoch.
    """

    kind: str
    seed: int
    epoch: int
    offset: int
    samples: int | None
    micro_batch: int
    accumulation: int
    mark: NotRequired[StreamMark | None]
    first_sample: NotRequired[int | None]


class MicroBatchLoader:
    """The micro-batches of a job, `strategy.micro_batch` samples each, epoch after epoch without end.

    The order depends on `seed` and the epoch alone. Samples left over at the end of an epoch, fewer than a micro-batch,
    are skipped in that epoch; the next shuffle gives them another chance. An optimizer step may span two epochs.

    job.data() may be a map-style dataset, an iterable of samples, a DataLoader (its dataset, collate function and workers
    are taken), or columns: a tensor or array, or a dict or tuple of them of equal length. TensorColumns and a plain
    TensorDataset are indexed many batches at once. job.data() is called again for each further epoch of an iterable.

    The batches are a function of the seed and the position: workers, reading ahead and a resume change none of them. What
    the job's code draws from torch, random and numpy while a batch is read comes from a stream of its own.

    Attributes:
        samples_per_epoch: None where nothing says how many an iterable has.
        synthetic: True when the job has no data.
        notes: what the user should know; more may come while an iterable is read.
        reading, reads: whether a step's data is being read, and how many such reads have begun. A read that ends by an
            exception leaves the position where it was.

    Raises JobError when the data is shorter than one global batch, or is nothing to take samples from.
    """

    def __init__(self, job: Job, strategy: Strategy, host: HostSettings = _HOST, *, seed: int = 0, device: torch.device = _CPU):
        self.job, self.strategy, self.host, self.seed, self.device = job, strategy, host, seed, device
        self.size, self.accumulation = strategy.micro_batch, strategy.accumulation
        self.notes: list[Note] = []
        self.reading, self.reads = False, 0
        self._positions: list[tuple[int, int]] = []  # epoch and first sample of each micro-batch of the latest step
        self._position = (0, 0)  # epoch and offset of the sample that comes next
        self._mark: StreamMark | None = None
        self._loaded: LoaderState | None = None  # the position that was loaded, until a step is taken
        opener = DataOpener(job, strategy, host, seed=seed, device=device, notes=self.notes)
        self._source, self._ahead = opener.source(), opener.ahead
        self.synthetic = isinstance(self._source, Synthetic)
        self.samples_per_epoch = opener.samples

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return None if self.samples_per_epoch is None else self.samples_per_epoch // self.size

    def epochs(self, samples: int) -> float | None:
        """Passes over the data after so many samples; None where nothing says how many an epoch has."""
        return samples / self.samples_per_epoch if self.samples_per_epoch else None

    def steps(self) -> Iterator[list[Batch]]:
        """What one optimizer step takes, again and again from the position on: `strategy.accumulation` micro-batches."""
        stream = self._micro_batches()
        while True:
            yield self._step(stream)

    def state(self) -> LoaderState:
        """The position after the latest step handed out by `steps`, and what data it is a position in."""
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
        if not isinstance(self._source, Stream):
            return state
        if not self._positions:  # nothing was read since the position was loaded
            saved = self._loaded or state
            state["mark"], state["first_sample"] = saved.get("mark"), saved.get("first_sample")
            state["micro_batch"], state["accumulation"] = saved["micro_batch"], saved["accumulation"]
            return state
        state["mark"] = self._source.mark() if self._source.at(epoch, offset) else self._mark
        state["first_sample"] = self._source.first_sample if self._source.epoch == epoch else None
        return state

    def load(self, state: LoaderState) -> None:
        """Continues where `state` says: the next step of `steps`, called after this, is the one that came next there.

        The position is in samples, so another micro-batch goes on from the same sample. Raises JobError when the data is
        another or the global batch differs; FileFormatError when this is no position.
        """
        _check_position(state)
        _check_same_data(state, self._source)
        if state["micro_batch"] * state["accumulation"] != self.size * self.accumulation:
            raise JobError(
                f"the run began with {state['micro_batch']} × {state['accumulation']} samples a step, "
                f"now it is {self.size} × {self.accumulation}.",
                [f"--micro-batch {state['micro_batch']} --accumulate {state['accumulation']}", "a new run in another folder"],
            )
        self._source.close()
        self.seed, self._position, self._positions = state["seed"], (state["epoch"], state["offset"]), []
        self._loaded = state

    @property
    def positions(self) -> list[tuple[int, int]]:
        """Epoch and first sample of each micro-batch of the latest step; what `where` takes."""
        return self._positions

    def where(self, positions: Sequence[tuple[int, int]]) -> dict[str, object]:
        """The data of a step: of each micro-batch its epoch, its number there, and the indices of its samples
        (for an iterable: how many came before them)."""
        micro_batches = []
        for epoch, start in positions:
            rows = list(range(start, start + self.size))
            if isinstance(self._source, TensorColumns | Samples):
                rows = shuffled(len(self._source), seed=self.seed, epoch=epoch)[rows].tolist()
            micro_batches.append({"epoch": epoch, "micro_batch": start // self.size, "samples": rows})
        return {"seed": self.seed, "micro_batches": micro_batches}

    def waits_for(self) -> str | None:
        """The worker process whose data comes next, such as "worker process 1 (pid 4711)"; None without any."""
        processes = self._source.processes if isinstance(self._source, Samples | Stream) else None
        return None if processes is None else processes.next_of()

    def close(self) -> None:
        """Ends worker processes, if there are any."""
        self._source.close()

    def _step(self, stream: Iterator[Taken]) -> list[Batch]:
        self.reads += 1
        self.reading = True
        try:
            taken = list(itertools.islice(stream, self.accumulation))
        finally:
            self.reading = False
        self._positions = [(epoch, start) for _, epoch, start, _ in taken]
        _, epoch, start, self._mark = taken[-1]
        self._position = epoch, start + self.size
        return [batch for batch, *_ in taken]

    def _micro_batches(self) -> Iterator[Taken]:
        saved = self.state()
        at = {"micro_batch": self.size, "seed": self.seed, "epoch": saved["epoch"], "offset": saved["offset"]}
        if isinstance(self._source, Stream):
            before = SavedStream(saved.get("mark"), saved.get("first_sample"), saved["micro_batch"])
            chunks = self._looked_at(self._source.read(**at, before=before))
        else:
            chunks = self._source.read(**at)
        if self.device.type == "cuda":
            pinned = self.host.pinned_memory is not False
            chunks = ahead(chunks, CudaCopies(self.device, pinned=pinned), micro_batches=self._ahead)
        if not isinstance(self._source, TensorColumns):
            for chunk in chunks:
                yield chunk.batch, chunk.epoch, chunk.start, chunk.mark
            return
        for chunk in chunks:
            batches: list[Batch] = self._source.split(cast("tuple[torch.Tensor, ...]", chunk.batch), micro_batch=self.size)
            for number in range(chunk.skip, chunk.micro_batches):
                yield batches[number], chunk.epoch, chunk.start + number * self.size, None
                batches[number] = None  # what training is done with need not outlive it

    def _looked_at(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """A stream's first batch shows what its samples are."""
        first = next(chunks)
        self.notes += [note for note in differences(self.job, first.batch) if note not in self.notes]
        yield first
        yield from chunks


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
