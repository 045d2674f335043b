"""What the making of a model allocates and frees on its device before the first step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

STAYS = -1  # lifetime of what is alive when the first step begins


def _none() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Loading:
    """The allocations before the first step, one a row, in the order they are made; none by default.

    The weight of a 4-bit layer, for example, is on the device at its full size until it is packed. The segments that the
    allocator took for such memory remain, and decide how the step's blocks are split.

    Attributes:
        size_bytes: bytes of each allocation. Shape (allocations,).
        lifetime: how many allocations are made after each before it is freed; STAYS where it is not. Shape (allocations,).
    """

    size_bytes: np.ndarray = field(default_factory=_none)
    lifetime: np.ndarray = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def stays(self) -> np.ndarray:
        """Which allocations are alive when the first step begins. Shape (allocations,)."""
        mask: np.ndarray = self.lifetime == STAYS
        return mask

    @property
    def is_sound(self) -> bool:
        """Whether sizes and lifetimes make sense: columns of one length, nothing freed after the last allocation."""
        if len(self.size_bytes) != len(self.lifetime):
            return False
        later = len(self) - 1 - np.arange(len(self))
        return bool(((self.size_bytes >= 0) & (self.lifetime >= STAYS) & (self.lifetime <= later)).all())


class LoadingLog:
    """Notes allocations and frees as they happen."""

    def __init__(self) -> None:
        self._size_bytes: list[int] = []
        self._lifetime: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        """Notes an allocation. Returns its number, which `free` takes."""
        self._size_bytes.append(size_bytes)
        self._lifetime.append(STAYS)
        return len(self._size_bytes) - 1

    def free(self, number: int) -> None:
        self._lifetime[number] = len(self._size_bytes) - number - 1

    def loading(self) -> Loading:
        """All of it; empty if nothing was freed, for then the order of what stays says it all."""
        table = Loading(np.array(self._size_bytes, dtype=np.int64), np.array(self._lifetime, dtype=np.int64))
        return Loading() if table.stays.all() else table
