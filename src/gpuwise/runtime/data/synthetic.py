"""Batches for a job without data: a cycle of its example batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gpuwise.errors import JobError
from gpuwise.job import Job, checked_batch
from gpuwise.job.batches import named_tensors
from gpuwise.runtime.data.draws import draws_of
from gpuwise.runtime.data.order import WHOLE, Chunk, DataShare

# Example batches in the cycle: enough to defeat caches, and small in memory.
SYNTHETIC_BATCHES = 4


class Synthetic:
    """Example batches of a job. A batch that the training changed in place is generated again."""

    def __init__(self, job: Job):
        self.job = job

    def read(self, *, micro_batch: int, seed: int, epoch: int, offset: int, share: DataShare = WHOLE) -> Iterator[Chunk]:
        """Yields a rank's batches from a position on, without end, as a single epoch.

        Raises JobError when the job's batch function gives batches of different shapes.
        """
        batches = [self._random_batch(micro_batch, seed, number) for number in range(SYNTHETIC_BATCHES)]
        fixed = self.job.samples_in is None  # otherwise first dimensions may differ
        shapes = [{name: tuple(tensor.shape) for name, tensor in named_tensors(batch)} for batch in batches if fixed]
        for other in shapes[1:]:
            if name := next((n for n in {**shapes[0], **other} if shapes[0].get(n) != other.get(n)), None):
                raise JobError(
                    f"the job's batch function changes its shapes: batch({micro_batch}) gave {name} of "
                    f"{shapes[0].get(name, 'absent')}, then of {other.get(name, 'absent')}.",
                    ["one shape for one number of samples", "data=..., whose batches may differ"],
                )
        changes = [_changes(batch) for batch in batches]
        for index in itertools.count(offset // micro_batch + share.rank, share.ranks):
            number = index % SYNTHETIC_BATCHES
            if _changes(batches[number]) != changes[number]:
                batches[number] = self._random_batch(micro_batch, seed, number)
                changes[number] = _changes(batches[number])
            yield Chunk(batches[number], 0, index * micro_batch)

    def close(self) -> None:
        pass

    def _random_batch(self, micro_batch: int, seed: int, number: int) -> object:
        with draws_of(seed, number):
            return checked_batch(self.job, micro_batch)


def _changes(batch: object) -> list[int]:
    """The number of in-place changes of each tensor."""
    return [tensor._version for _, tensor in named_tensors(batch)]
