"""Losses of a program on a GPU, read without holding the device up."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import torch
from torch import Tensor

AHEAD = 4  # steps that the host may be ahead of what it knows of their losses

Row = TypeVar("Row")


class DeviceLosses(Generic[Row]):
    """Each loss is copied to the host as the device gets there, and known some steps later, with what was put beside it."""

    def __init__(self) -> None:
        self._room = torch.empty(AHEAD + 1, dtype=torch.float32, pin_memory=torch.cuda.is_available())
        self._waiting: deque[tuple[Row, int, torch.cuda.Event]] = deque()  # with the place in the room, and when it is there
        self._place = 0

    def put(self, row: Row, loss: Tensor) -> None:
        place, self._place = self._place, (self._place + 1) % len(self._room)
        self._room[place].copy_(loss, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((row, place, event))

    def known(self, *, wait: bool = False) -> list[tuple[Row, float]]:
        """What has become known since this was asked last, in order.

        wait: for all of them. Else it waits only for one that the host is AHEAD steps ahead of: so there is room for another.
        """
        found: list[tuple[Row, float]] = []
        while self._waiting:
            row, place, event = self._waiting[0]
            if not event.query():
                if not wait and len(self._waiting) < AHEAD:
                    break
                event.synchronize()
            found.append((row, float(self._room[place])))
            self._waiting.popleft()
        return found
