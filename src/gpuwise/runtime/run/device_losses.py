"""Losses of a program on an accelerator, read without blocking the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gpuwise.runtime.devices import Backend, Event, backend_of

AHEAD = 4  # steps that the host may run ahead of the latest known loss

Row = TypeVar("Row")


class DeviceLosses(Protocol[Row]):
    """Each step's loss and its named parts, known to the host some steps later.

    Attributes:
        numbers: numbers per step: the loss and its parts.
    """

    numbers: int

    def put(self, row: Row, values: Sequence[Tensor]) -> None:
        """Begins the copy of a step's `numbers` values; `ready` returns them with the row."""

    def ready(self, *, wait: bool = False) -> list[tuple[Row, list[float]]]:
        """The rows and values that have arrived since the last call, in order.

        Arguments:
            wait: waits for all values. Otherwise it waits only for a step that is AHEAD steps old.
        """


def losses_of(device: torch.device, numbers: int = 1) -> DeviceLosses[Row]:
    """The losses of a device: copied asynchronously where it can, else several steps at a time."""
    backend = backend_of(device)
    return CopiedLosses(backend, numbers) if backend.copies_overlap and backend.pins else GatheredLosses(numbers)


class CopiedLosses(Generic[Row]):
    """Losses that the device copies to pinned memory behind each step."""

    def __init__(self, backend: Backend, numbers: int = 1) -> None:
        self.numbers = numbers
        self._backend = backend
        self._room = backend.pinned(torch.empty(AHEAD + 1, numbers, dtype=torch.float32))
        self._waiting: deque[tuple[Row, int, Event]] = deque()  # row, slot of the host memory, end of the copy
        self._slot = 0

    def put(self, row: Row, values: Sequence[Tensor]) -> None:
        slot, self._slot = self._slot, (self._slot + 1) % len(self._room)
        for number, value in enumerate(values):
            self._room[slot, number].copy_(value.reshape(()), non_blocking=True)
        event = self._backend.mark()
        assert event is not None
        self._waiting.append((row, slot, event))

    def ready(self, *, wait: bool = False) -> list[tuple[Row, list[float]]]:
        losses: list[tuple[Row, list[float]]] = []
        while self._waiting:
            row, slot, event = self._waiting[0]
            if not event.query():
                if not wait and len(self._waiting) < AHEAD:
                    break
                event.synchronize()
            losses.append((row, self._room[slot].tolist()))
            self._waiting.popleft()
        return losses


class GatheredLosses(Generic[Row]):
    """Losses that stay on the device and are read AHEAD steps at a time: such a device waits for all of its work to copy."""

    def __init__(self, numbers: int = 1) -> None:
        self.numbers = numbers
        self._waiting: list[tuple[Row, Tensor]] = []

    def put(self, row: Row, values: Sequence[Tensor]) -> None:
        self._waiting.append((row, torch.stack([value.detach().reshape(()).float() for value in values])))

    def ready(self, *, wait: bool = False) -> list[tuple[Row, list[float]]]:
        if not self._waiting or not (wait or len(self._waiting) >= AHEAD):
            return []
        rows = [row for row, _ in self._waiting]
        values = torch.stack([values for _, values in self._waiting]).tolist()
        self._waiting = []
        return list(zip(rows, values, strict=True))
