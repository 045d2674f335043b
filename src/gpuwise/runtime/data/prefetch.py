"""Copies micro-batches to the device while it still works on earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol, TypeVar

import torch

from gpuwise.job.batches import map_tensors
from gpuwise.job.job import Batch
from gpuwise.runtime.data.order import Chunk
from gpuwise.runtime.devices import backend_of

Started = TypeVar("Started")


class Copies(Protocol[Started]):
    """Asynchronous copies of batches: `start` begins a copy, `finish` returns its result."""

    def start(self, batch: Batch) -> Started: ...

    def finish(self, started: Started) -> Batch: ...


class StreamCopies:
    """Copies batches to an accelerator on a separate stream, parallel to its other work.

    Arguments:
        device: an accelerator whose copies overlap its kernels (see Backend.copies_overlap).
        pinned: whether to copy into pinned memory first; a copy from pageable memory blocks this process.
    """

    def __init__(self, device: torch.device, *, pinned: bool):
        self.device, self.pinned = device, pinned
        self._backend = backend_of(device)
        self._stream = self._backend.new_stream()

    def start(self, batch: Batch) -> tuple[Batch, torch.Event]:
        with self._backend.on_stream(self._stream):
            return map_tensors(batch, self._copy), self._stream.record_event()

    def finish(self, started: tuple[Batch, torch.Event]) -> Batch:
        """The batch on the device. Only kernels launched after this call wait for the copy."""
        batch, copied = started
        current = self._backend.current_stream()
        current.wait_event(copied)

        def use(tensor: torch.Tensor) -> torch.Tensor:
            self._backend.keep_for(tensor, current)  # no later copy reuses its memory before this stream is done with it
            return tensor

        return map_tensors(batch, use)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and self.pinned:
            tensor = self._backend.pinned(tensor)
        return tensor.to(self.device, non_blocking=True)


def ahead(chunks: Iterator[Chunk], copies: Copies[Started], *, micro_batches: int) -> Iterator[Chunk]:
    """Yields the same chunks on the device and keeps at least `micro_batches` micro-batches in flight.

    An error of the reader is raised in order, after all chunks that were read before it.
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
