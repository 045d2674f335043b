"""Losses of a program on a GPU, read without holding the device up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

AHEAD = 4  # steps that the host may be ahead of what it knows of their losses

Row = TypeVar("Row")


class DeviceLosses(Generic[Row]):
    """Each step's loss, and its named parts, are copied to the host as the device gets there, and known some steps later, with
    what was put beside them.

    Arguments:
        numbers: of a step, the loss and its parts.
    """

    def __init__(self, numbers: int = 1) -> None:
        self.numbers = numbers
        self._room = torch.empty(AHEAD + 1, numbers, dtype=torch.float32, pin_memory=torch.cuda.is_available())
        self._waiting: deque[tuple[Row, int, torch.cuda.Event]] = deque()  # with its slot of the room, and when it is there
        self._slot = 0

    def put(self, row: Row, values: Sequence[Tensor]) -> None:
        """values: as many as `numbers` says."""
        slot, self._slot = self._slot, (self._slot + 1) % len(self._room)
        for number, value in enumerate(values):
            self._room[slot, number].copy_(value.reshape(()), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((row, slot, event))

    def known(self, *, wait: bool = False) -> list[tuple[Row, list[float]]]:
        """What has become known since this was asked last, in order.

        wait: for all of them. Else it waits only for one that the host is AHEAD steps ahead of: so there is room for another.
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
