"""Gradients of a tied weight that backward adds up in place, and the same step with their sum in memory of its own.

One device adds the second gradient to the memory of the first (gpuwise.tracing.accumulation). Where each end of a pipeline has
its own part, or a replica copies the sum into a bucket, the first gradient is one tensor and the sum another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuwise.trace.tables import CATEGORIES, PHASES, Storages
from gpuwise.trace.trace import Trace

_GRADIENT, _TEMPORARY = CATEGORIES.index("gradient"), CATEGORIES.index("temporary")
_BACKWARD = PHASES.index("backward")
_ADDS_IN_PLACE = "aten.add_.Tensor"


class SumInPlace(NamedTuple):
    """A gradient of a weight, added to another one of the same weight.

    Attributes:
        position: of the sum.
        total: the storage that it is added to, which another module made.
        part: the storage that is added.
    """

    position: int
    total: int
    part: int


def adds_in_place(trace: Trace) -> np.ndarray:
    """Whether a position of backward adds to a tensor in place. Shape (positions,)."""
    names = np.array([name == _ADDS_IN_PLACE for name in trace.operations.name])
    mask: np.ndarray = names[trace.sequence.operation] & (trace.sequence.phase == _BACKWARD)
    return mask


def sums_in_place(trace: Trace) -> tuple[SumInPlace, ...]:
    """The sums of gradients of tied weights, in the order in which they run."""
    return trace.once("sums in place", lambda: _sums_in_place(trace))


def _sums_in_place(trace: Trace) -> tuple[SumInPlace, ...]:
    sequence, storages, last = trace.sequence, trace.storages, len(trace.sequence) - 1
    adds = adds_in_place(trace)
    born, died = np.maximum(storages.born, 0), np.minimum(storages.died, last)
    of_backward = (storages.born >= 0) & (sequence.phase[born] == _BACKWARD)
    added = of_backward & (storages.category == _TEMPORARY) & adds[died]  # to another part, or to an earlier micro-batch's sum
    parts = np.flatnonzero(added & (sequence.micro_step[born] == sequence.micro_step[died]))
    totals = np.flatnonzero(added | (of_backward & (storages.category == _GRADIENT)))
    sums = []
    for part in parts[np.argsort(died[parts], kind="stable")].tolist():
        position = int(died[part])
        fits = (storages.size_bytes[totals] == storages.size_bytes[part]) & (storages.born[totals] < storages.born[part])
        fits &= (storages.died[totals] > position) & (sequence.micro_step[born[totals]] == sequence.micro_step[position])
        fits &= sequence.module[born[totals]] != sequence.module[position]
        sums += [SumInPlace(position, int(total), part) for total in totals[fits][:1]]
    return tuple(sums)


def with_sums_apart(trace: Trace) -> Trace:
    """The step whose sums of tied gradients are new tensors: what a sum is added to ends there."""
    return trace.once("sums apart", lambda: _with_sums_apart(trace)) if sums_in_place(trace) else trace


def _with_sums_apart(trace: Trace) -> Trace:
    sums, storages = sums_in_place(trace), trace.storages
    born, since = storages.born.copy(), []
    for one in sums:
        since.append(born[one.total])
        born[one.total] = one.position
    totals, positions = (np.array([getattr(one, name) for one in sums]) for name in ("total", "position"))
    return replace(
        trace,
        storages=Storages(
            np.concatenate([storages.size_bytes, storages.size_bytes[totals]]),
            np.concatenate([storages.category, np.full(len(sums), _TEMPORARY)]).astype(storages.category.dtype),
            np.concatenate([storages.module, trace.sequence.module[since]]).astype(storages.module.dtype),
            np.concatenate([born, since]).astype(storages.born.dtype),
            np.concatenate([storages.died, positions]).astype(storages.died.dtype),
            np.concatenate([storages.stream, storages.stream[totals]]),
        ),
    )
