"""What the tensors of a few blocks hold where each of their sections runs, from which any number of blocks follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gpuwise.plan.compose.parts import MICRO_STEPS, Composed, along
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, SECTIONS
from gpuwise.trace.memory import rounded
from gpuwise.trace.parallel.blocks import full_gradients
from gpuwise.trace.parallel.segments import UPDATE, segments_of, select
from gpuwise.trace.parallel.stage import parts_of_tied_gradient
from gpuwise.trace.parallel.tied import sums_in_place, with_sums_apart
from gpuwise.trace.tables import CATEGORIES, PHASES
from gpuwise.trace.trace import Trace

PASSES = 2  # forward, and backward with what it computes again
_FORWARD, _UPDATE = PHASES.index("forward"), PHASES.index("optimizer")
# The last axes of Lives.peaks as rows: which of _parts_of each of them has.
_COMBINED = np.array([[1.0, *chosen] for chosen in product((0.0, 1.0), repeat=3)])
_LASTING = [CATEGORIES.index(name) for name in ("parameter", "optimizer_state", "input")]
_GRADIENT, _INPUT, _BUFFER = (CATEGORIES.index(name) for name in ("gradient", "input", "communication_buffer"))


@dataclass(frozen=True)
class Lives:
    """Bytes of a tensor-parallel rank's sections at many micro-batches. The first axis are micro-batches.

    Attributes:
        saved: kept from a section's forward to its backward. Shape (micro-batches, sections).
        kept: kept to the end of forward. Shape (micro-batches, sections).
        gradients: of parameters. Shape (sections,).
        peaks: the most at any moment of a section's pass: of its own tensors; at index 1 of the last axis but two with what is
            passed to it by the section before it, of the last but one by the one behind it, of the last with its own gradients.
            Shape (micro-batches, sections, passes, micro-steps, 2, 2, 2).
        inputs: of the batch. Shape (micro-batches,).
        received_forward, received_backward: what a stage receives in a micro-batch. Shape (micro-batches,).
        gathered: of `saved`, buffers that ranks filled for each other, as gathered keys. Shape (micro-batches, sections).
        of_last, of_others: the same in the last rank of a pipeline and in its others, where the sections before and behind the
            blocks share a weight; None (default) where they share none.
    """

    saved: np.ndarray
    kept: np.ndarray
    gradients: np.ndarray
    peaks: np.ndarray
    inputs: np.ndarray
    received_forward: np.ndarray
    received_backward: np.ndarray
    gathered: np.ndarray
    of_last: Lives | None = None
    of_others: Lives | None = None

    def of_rank(self, weights: np.ndarray) -> Lives:
        """What lives in a rank with so many of each section. weights: shape (sections,)."""
        if weights[BEFORE_BLOCKS] and weights[AFTER_BLOCKS]:
            return self
        return (self.of_last if weights[AFTER_BLOCKS] else self.of_others) or self


def lives(low: Composed, high: Composed, micro_batches: Sequence[int], *, freed: bool) -> Lives:
    """What lives in the steps between two micro-batches.

    Arguments:
        freed: whether gradients leave at the end of a block's backward, as under fully_shard without a pipeline.
    """
    whole = _lives(low, high, micro_batches, freed=freed)
    if freed:
        return whole
    apart = whole
    if sums_in_place(low.trace):
        low, high = (replace(one, trace=with_sums_apart(one.trace)) for one in (low, high))
        apart = _lives(low, high, micro_batches, freed=freed)
        peaks = whole.peaks.copy()
        peaks[..., 0] = apart.peaks[..., 0]  # without its own gradients, which are somewhere else: in the buckets of a replica
        whole = replace(whole, peaks=peaks)
    parts = parts_of_tied_gradient(low.trace)
    if not parts.any():
        return whole
    # The first rank adds its part of the gradient to its own sum, which a single device makes of both; so does the last one.
    first, second = (_without(one, parts_of_tied_gradient(one.trace)) for one in (low, high))
    others = _lives(first, second, micro_batches, freed=freed)
    gradients = apart.gradients.copy()
    gradients[AFTER_BLOCKS] += rounded(low.trace.storages.size_bytes[parts]).max()
    return replace(whole, of_last=replace(apart, gradients=gradients), of_others=others)


def _without(one: Composed, rows: np.ndarray) -> Composed:
    """The blocks without some storages."""
    trace, everywhere = one.trace, np.ones(len(one.trace.sequence), dtype=bool)
    return replace(one, trace=select(trace, everywhere, ~rows))


def _lives(low: Composed, high: Composed, micro_batches: Sequence[int], *, freed: bool) -> Lives:
    saved, gathered = (along(low, high, micro_batches, of) for of in (_saved, _gathered))
    received = along(low, high, micro_batches, _received)
    inputs = along(low, high, micro_batches, _inputs)
    # Everything between two micro-batches is linear: what is there in the first, and what each further sample adds.
    curves, slopes = _line(low, high, lambda one: _curves(one, freed=freed))
    own, own_slopes = _line(low, high, lambda one: _gradient_curves(one, freed=freed))
    further = np.asarray(micro_batches, dtype=np.float64) - low.micro_batch
    sequence, segments, segment_of = low.trace.sequence, segments_of(low.trace) + 1, _segments_of_sections(low)
    ends = np.flatnonzero((sequence.phase == _FORWARD) & (sequence.micro_step == 0) & (segments == segments.max()))
    kept = curves[:, ends[0]] + further[:, None] * slopes[:, ends[0]]
    peaks = np.zeros((len(micro_batches), len(SECTIONS), PASSES, MICRO_STEPS, 2, 2, 2))
    at_kind = _positions_by((segments * PASSES + (sequence.phase != _FORWARD)) * MICRO_STEPS + sequence.micro_step)
    for section, segment in segment_of.items():
        bases, growths = (_parts_of(here, of_own, segment) for here, of_own in ((curves, own), (slopes, own_slopes)))
        for turn, micro_step in product(range(PASSES), range(MICRO_STEPS)):
            at = at_kind.get((segment * PASSES + turn) * MICRO_STEPS + micro_step)
            if at is None:
                continue
            behind = np.array([[1], [1], [turn], [1]])
            base, slope = (_COMBINED @ (parts[:, at] * behind) for parts in (bases, growths))
            of_before = (saved if turn else kept)[:, :segment].sum(axis=1)
            most = (base + further[:, None, None] * slope - _COMBINED[:, 1:2] * of_before[:, None, None]).max(axis=2)
            peaks[:, section, turn, micro_step] = most.reshape(-1, 2, 2, 2)
    order = [segment_of.get(section, 0) for section in range(len(SECTIONS))]
    there = np.array([section in segment_of for section in range(len(SECTIONS))])
    gradients = _by_home(low, low.trace.storages.category == _GRADIENT)
    return Lives(
        saved[:, order] * there,
        kept[:, order] * there,
        gradients[order] * there,
        peaks,
        inputs,
        received[:, 1],
        received[:, 0],
        gathered[:, order] * there,
    )


def _line(low: Composed, high: Composed, of: Callable[[Composed], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A count at the lower micro-batch, and what each further sample adds to it."""
    first = of(low)
    more = high.micro_batch - low.micro_batch
    return first, (of(high) - first) / more if more else np.zeros_like(first)


def _positions_by(kind: np.ndarray) -> dict[int, np.ndarray]:
    """The positions of each kind, ascending."""
    order = np.argsort(kind, kind="stable")
    kinds, starts = np.unique(kind[order], return_index=True)
    return dict(zip(kinds.tolist(), np.split(order, starts[1:]), strict=True))


def _parts_of(here: np.ndarray, own_gradients: np.ndarray, segment: int) -> np.ndarray:
    """Bytes of a segment itself, of the segments before it, of those behind it, of its gradients. Shape (4, positions).

    Arguments:
        here: live bytes of all segments. Shape (segments, positions).
        own_gradients: gradients of all segments, likewise.
    """
    return np.stack([here[segment], here[:segment].sum(axis=0), here[segment + 1 :].sum(axis=0), own_gradients[segment]])


def _segments_of_sections(one: Composed) -> dict[int, int]:
    """The number of the segment that stands for each section, counted from 0."""
    sections, segments = one.shallow.sections(one.trace), segments_of(one.trace) + 1
    return {section: int(segments[sections == section][0]) for section in range(len(SECTIONS)) if (sections == section).any()}


def _homes(one: Composed) -> np.ndarray:
    """The segment that makes each storage, counted from 0. Shape (storages,)."""
    homes: np.ndarray = segments_of(one.trace)[np.maximum(one.trace.storages.born, 0)] + 1
    return homes


def _curves(one: Composed, *, freed: bool) -> np.ndarray:
    """Live bytes that each segment has made, at each position; gradients are left out. Shape (segments, positions).

    freed: whether the full gradients of every micro-batch are.
    """
    trace, storages, home = one.trace, one.trace.storages, _homes(one)
    rows = (storages.born >= 0) & ~np.isin(storages.category, [*_LASTING, _GRADIENT]) & (home >= 0)
    if freed:
        rows[full_gradients(trace, 1)] = False
    alive = _alive(one, np.flatnonzero(rows), storages.died[rows])
    inside = np.flatnonzero(trace.sequence.phase != _UPDATE)
    workspace = rounded(trace.operations.column("workspace_bytes"))[trace.sequence.operation[inside]]
    alive[segments_of(trace)[inside] + 1, inside] += workspace
    return alive


def _gradient_curves(one: Composed, *, freed: bool) -> np.ndarray:
    """The same of gradients: of the first micro-batch, where they stay, or of each to the end of its segment's backward."""
    trace, storages, length = one.trace, one.trace.storages, len(one.trace.sequence)
    if not freed:
        rows = np.flatnonzero((storages.category == _GRADIENT) & (storages.born >= 0))
        return _alive(one, rows, np.full(len(rows), length - 1))
    segments, alive = segments_of(trace), np.zeros((len(trace.header.blocks) + 2, length))
    for micro_step in range(MICRO_STEPS):
        rows = full_gradients(trace, micro_step)
        backward = (trace.sequence.phase != _FORWARD) & (trace.sequence.micro_step == micro_step)
        last = {segment: np.flatnonzero(backward & (segments == segment))[-1:] for segment in np.unique(segments).tolist()}
        ends = [int(last[segment][0]) if len(last[segment]) else length - 1 for segment in (_homes(one)[rows] - 1).tolist()]
        alive += _alive(one, rows, np.maximum(np.array(ends, dtype=np.int64), storages.born[rows]))
    return alive


def _alive(one: Composed, rows: np.ndarray, died: np.ndarray) -> np.ndarray:
    """Bytes of some storages by the segment that made them, at each position. Shape (segments, positions)."""
    length, storages = len(one.trace.sequence), one.trace.storages
    delta = np.zeros((len(one.trace.header.blocks) + 2, length + 2))
    size, home = rounded(storages.size_bytes[rows]), _homes(one)[rows]
    np.add.at(delta, (home, storages.born[rows]), size)
    np.add.at(delta, (home, np.minimum(died, length) + 1), -size)
    alive: np.ndarray = np.cumsum(delta, axis=1)[:, :length]
    return alive


def _by_home(one: Composed, rows: np.ndarray) -> np.ndarray:
    size = rounded(one.trace.storages.size_bytes[rows]).astype(np.float64)
    return np.bincount(_homes(one)[rows], weights=size, minlength=len(one.trace.header.blocks) + 2)


def _saved(one: Composed) -> np.ndarray:
    """Bytes that each segment keeps for backward. Shape (segments,)."""
    return _by_home(one, _saved_rows(one))


def _gathered(one: Composed) -> np.ndarray:
    """Bytes of the buffers among them that ranks filled for each other. Shape (segments,)."""
    return _by_home(one, _saved_rows(one) & (one.trace.storages.category == _BUFFER))


def _saved_rows(one: Composed) -> np.ndarray:
    """Whether a storage is kept from forward to backward. Shape (storages,)."""
    trace, storages = one.trace, one.trace.storages
    born, died = np.maximum(storages.born, 0), np.minimum(storages.died, len(trace.sequence) - 1)
    phase, micro_step = trace.sequence.phase, trace.sequence.micro_step
    rows = (storages.born >= 0) & (phase[born] == _FORWARD) & (micro_step[born] == 0) & (storages.died < len(trace.sequence))
    rows &= (phase[died] != _FORWARD) & (phase[died] != _UPDATE) & ~np.isin(storages.category, _LASTING)
    return rows


def _inputs(one: Composed) -> np.ndarray:
    """Bytes of the batches that are there at once."""
    trace, storages = one.trace, one.trace.storages
    micro_step = trace.sequence.micro_step[np.maximum(storages.born, 0)]
    rows = (storages.category == _INPUT) & ((storages.born < 0) | (micro_step == 0))
    return np.asarray(float(rounded(storages.size_bytes[rows]).sum()))


def _received(one: Composed) -> np.ndarray:
    """Bytes that a stage receives in a micro-batch: gradients of the stage behind it, and activations of the one before it.

    Between the first block and the second, before tensor parallelism divides them (see gpuwise.trace.parallel.stage).
    """
    return one.shallow.trace.once("received", lambda: _received_of(one.shallow.trace))


def _received_of(trace: Trace) -> np.ndarray:
    storages, segments, last = trace.storages, segments_of(trace), len(trace.sequence) - 1
    born, died = segments[np.maximum(storages.born, 0)], segments[np.minimum(storages.died, last)]
    first = (storages.born >= 0) & (storages.died <= last) & (trace.sequence.micro_step[np.maximum(storages.born, 0)] == 0)
    casts = np.array([name.startswith("aten._to_copy") for name in trace.operations.name])  # of weights: nobody sends them
    first &= ~casts[trace.sequence.operation[np.maximum(storages.born, 0)]]
    first &= ~np.isin(storages.category, _LASTING) & (died != UPDATE)
    back = first & (born >= 1) & (born < len(trace.header.blocks)) & (died <= 0)
    onward = first & (born <= 0) & (died >= 1)
    return np.array([float(storages.size_bytes[rows].sum()) for rows in (back, onward)])
