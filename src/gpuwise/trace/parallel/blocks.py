"""The repeated blocks of a model in its step: their modules, spans and gradients."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gpuwise.trace.parallel.tied import adds_in_place, sums_in_place
from gpuwise.trace.tables import CATEGORIES, PHASES
from gpuwise.trace.trace import Trace

_GRADIENT, _TEMPORARY = CATEGORIES.index("gradient"), CATEGORIES.index("temporary")


@lru_cache(maxsize=32)  # the same at every micro-batch
def block_of_modules(modules: tuple[str, ...], paths: tuple[str, ...]) -> np.ndarray:
    """The block each module belongs to, -1 for none. Shape (modules,)."""
    blocks = {path: index for index, path in enumerate(paths)}
    block_of = []
    for module in modules:
        path = module
        while path and path not in blocks:
            path = path.rpartition(".")[0]
        block_of.append(blocks.get(path, -1) if path else -1)
    return np.array(block_of, dtype=np.int64)


def spans(trace: Trace, block_of: np.ndarray, micro_step: int, phases: tuple[str, ...]) -> dict[int, tuple[int, int]]:
    """First and last position of each block in these phases of a micro-batch; key -1: of the whole."""
    sequence = trace.sequence
    inside = np.isin(sequence.phase, [PHASES.index(p) for p in phases]) & (sequence.micro_step == micro_step)
    positions = np.flatnonzero(inside)
    block = block_of[sequence.module[positions]]
    span_of = {-1: (int(positions[0]), int(positions[-1]))} if len(positions) else {-1: (0, -1)}
    for index in range(int(block_of.max()) + 1):
        of_block = positions[block == index]
        span_of[index] = (int(of_block[0]), int(of_block[-1])) if len(of_block) else (0, -1)
    return span_of


def full_gradients(trace: Trace, micro_step: int) -> np.ndarray:
    """Rows of storages that hold full gradients made in a micro-batch: those kept, and those added to them later."""
    sequence, storages = trace.sequence, trace.storages
    added = adds_in_place(trace)[np.minimum(storages.died, len(sequence) - 1)]
    added[[one.part for one in sums_in_place(trace)]] = False  # to another gradient of the same micro-batch
    full = (storages.category == _GRADIENT) | ((storages.category == _TEMPORARY) & added & (micro_step == 1))
    born = np.maximum(storages.born, 0)
    full &= (sequence.phase[born] == PHASES.index("backward")) & (sequence.micro_step[born] == micro_step)
    return np.flatnonzero(full & (storages.born >= 0))
