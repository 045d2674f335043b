"""Micro-batches on their way to the device while it still works on earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol, TypeVar

import torch

from gpuwise.job.batches import map_tensors
from gpuwise.job.job import Batch
from gpuwise.runtime.data.order import Chunk

Started = TypeVar("Started")


class Copies(Protocol[Started]):
    """Copies of batches that go on beside the work of the device: `start` begins one, `finish` gives its result."""

    def start(self, batch: Batch) -> Started: ...

    def finish(self, started: Started) -> Batch: ...


class CudaCopies:
    """Copies batches to a CUDA device beside its work, on a stream of their own.

    pinned: first into memory the device reads by itself; without it the copy holds this process up.
    """

    def __init__(self, device: torch.device, *, pinned: bool):
        self.device, self.pinned = device, pinned
        self._stream = torch.cuda.Stream(device)

    def start(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(self._stream):
            return map_tensors(batch, self._copy), self._stream.record_event()

    def finish(self, started: tuple[Batch, torch.cuda.Event]) -> Batch:
        """The batch on the device. What is launched from now on waits for the copy; nothing else does."""
        batch, copied = started
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)

        def use(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)  # its memory is not given to a later copy before this stream is done with it
            return tensor

        return map_tensors(batch, use)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and self.pinned:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def ahead(chunks: Iterator[Chunk], copies: Copies[Started], *, micro_batches: int) -> Iterator[Chunk]:
    """The same chunks on the device, with at least so many micro-batches on their way when one is handed out.

    What reading raises is raised in its turn,
    after all that was read before it.
    """
    waiting: deque[tuple[Chunk, Started]] = deque()
    under_way, failure = 0, None
    while True:
        while failure is None and (not waiting or under_way - waiting[0][0].micro_batches < micro_batches):
            try:
                chunk = next(chunks)
            except Exception as error:
                failure = error
                break
            waiting.append((chunk._replace(batch=None), copies.start(chunk.batch)))
            under_way += chunk.micro_batches
        if not waiting:
            break
        chunk, started = waiting.popleft()
        under_way -= chunk.micro_batches
        yield chunk._replace(batch=copies.finish(started))
        del chunk, started
    if failure is not None and not isinstance(failure, StopIteration):
        raise failure
