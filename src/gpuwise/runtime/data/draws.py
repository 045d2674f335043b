"""Random numbers for code that reads data: from streams of their own, so that reading never changes what training draws.

Each micro-batch is read under seeds that follow from where it stands. Who reads it, and when, therefore changes nothing:
this process or another, just in time or ahead of it, in the first run or after a resume.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import torch

_random: ModuleType = np.random  # numpy's type hints leave out the exchange of generators
_MT19937_BYTES = 624 * 4 + 4  # numpy's mt19937_state: the key and the place in it


def seed_of(*position: int) -> int:
    """63 bits that follow from whole numbers alone, on every machine and in every version of Python."""
    return int.from_bytes(hashlib.blake2b(repr(position).encode(), digest_size=8).digest(), "little") >> 1


@contextmanager
def draws_of(*position: int) -> Iterator[None]:
    """Within it torch (on the CPU), random and numpy draw what follows from `position`; after it they go on as before."""
    seed = seed_of(*position)
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    with _numpy.seeded(seed % 2**32):
        try:
            yield
        finally:
            torch.default_generator.set_state(torch_state)
            random.setstate(python_state)


class _Numpy:
    """numpy's global draws. Its get_state and set_state take 70 µs together, about what reading a small batch takes.

    So the generator is exchanged, not its state. That forgets the half of a pair of normal numbers that numpy may keep
    beside the generator, which only get_state tells; but while the generator is as it was when there was none, there is
    none.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._seen = b""  # the memory of the training's generator when nothing was kept beside it

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        current = _random.get_bit_generator()
        memory, before = _memory(current), None
        if not memory or memory != self._seen:
            before = _random.get_state(legacy=False)
            self._seen = b"" if before["has_gauss"] else memory
        _random.set_bit_generator(self._own if current is not self._own else np.random.MT19937(0))
        np.random.seed(seed)
        try:
            yield
        finally:
            _random.set_bit_generator(current)
            if before is not None and before["has_gauss"]:
                np.random.set_state(before)


def _memory(generator: object) -> bytes:
    """All of a generator's state; empty for other kinds than numpy's usual one."""
    if not isinstance(generator, np.random.MT19937):
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


_numpy = _Numpy()
