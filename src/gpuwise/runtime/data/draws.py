"""Separate random streams for code that reads data, so that reading never changes the random numbers of training.

Each micro-batch is read under seeds derived from its position. Its content therefore depends neither on the process that
reads it nor on the time of the read, and is the same after a resume.
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

_random: ModuleType = np.random  # numpy's type hints omit the functions that exchange generators
_MT19937_BYTES = 624 * 4 + 4  # numpy's mt19937_state: the key and the position in it


def seed_of(*position: int) -> int:
    """A 63-bit seed derived from integers, equal on every machine and in every version of Python."""
    return int.from_bytes(hashlib.blake2b(repr(position).encode(), digest_size=8).digest(), "little") >> 1


@contextmanager
def draws_of(*position: int) -> Iterator[None]:
    """A context that seeds torch (on the CPU), random and numpy by `position`, and restores their states on exit."""
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
    """numpy's global random state.

    numpy's get_state and set_state take 70 µs together, about as long as reading a small batch. This class therefore
    exchanges the generator instead of its state. An exchange loses the second normal number of a pair, which numpy caches
    outside the generator and shows only in get_state. No number is cached as long as the generator's memory is unchanged
    since get_state last showed none.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._seen = b""  # memory of the training's generator when no normal number was cached

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
    """The complete memory of an MT19937 generator; empty for other generators."""
    if not isinstance(generator, np.random.MT19937):
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


_numpy = _Numpy()
