"""Losses of a program on a GPU, read without blocking the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

AHEAD = 4  # steps that the host may run ahead of the latest known loss

Row = TypeVar("Row")


class DeviceLosses(Generic[Row]):
    """Copies each step's loss and its named parts to the host asynchronously; they are known some steps later.

    Arguments:
        numbers: numbers per step: the loss and its parts.
    """

    def __init__(self, numbers: int = 1) -> None:
        self.numbers = numbers
        self._room = torch.empty(AHEAD + 1, numbers, dtype=torch.float32, pin_memory=torch.cuda.is_available())
        self._waiting: deque[tuple[Row, int, torch.cuda.Event]] = deque()  # row, slot of the host memory, end of the copy
        self._slot = 0

    def put(self, row: Row, values: Sequence[Tensor]) -> None:
        """Begins the copy of a step's `numbers` values; `ready` returns them with the row."""
        slot, self._slot = self._slot, (self._slot + 1) % len(self._room)
        for number, value in enumerate(values):
            self._room[slot, number].copy_(value.reshape(()), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((row, slot, event))

    def ready(self, *, wait: bool = False) -> list[tuple[Row, list[float]]]:
        """The rows and values that have arrived since the last call, in order.

        Arguments:
            wait: waits for all values. Otherwise it waits only for a step that is AHEAD steps old, to free its slot.
        """
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
