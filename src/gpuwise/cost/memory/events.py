"""The allocations and frees of a process that runs a trace: the model, a first step, and a steady step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.cost.memory.allocator import Replay, replay
from gpuwise.trace.loading import Loading
from gpuwise.trace.tables import BEFORE, CATEGORIES, KINDS, PHASES, Storages
from gpuwise.trace.trace import Trace

WORKSPACE = "workspace"  # memory of cuBLAS, a category beside those of storages
CATEGORY_NAMES = (*CATEGORIES, WORKSPACE)
_GEMM = KINDS.index("gemm")
_STATE, _TEMPORARY = CATEGORIES.index("optimizer_state"), CATEGORIES.index("temporary")
# The order of events at one position: an operation allocates its outputs, a new library handle if needed, and the workspace
# of its kernel; then values are freed that it was the last to use. _AGAIN: between two steps.
_BIRTH, _HANDLE, _SCRATCH, _SCRATCH_END, _DEATH, _AGAIN = range(6)
_MOMENTS = _AGAIN + 1
_NEVER = 2**62


@dataclass(frozen=True)
class Events:
    """Allocations, and the order of their allocation and freeing.

    Attributes:
        size_bytes: bytes of each allocation, shape (allocations,).
        category: index into CATEGORY_NAMES, shape (allocations,).
        position: position in the trace, shape (allocations,); BEFORE for allocations made before a step.
        order: one number per event: `k` makes allocation k, `~k` frees it.
        stream: number of the stream that is current at each allocation, shape (allocations,).
        moment: position of each event in the trace, plus `duration` in the second step; shape (events,).
        duration: length of a step in positions (with at most two micro-batches).
    """

    size_bytes: np.ndarray
    category: np.ndarray
    position: np.ndarray
    stream: np.ndarray
    order: np.ndarray
    moment: np.ndarray
    duration: int

    def replay(self, *, limit_bytes: int | None = None, expandable: bool = False) -> Replay:
        """What the allocator does with them. Arguments as for gpuwise.cost.memory.allocator.replay."""
        return replay(
            self.size_bytes.tolist(),
            self.order.tolist(),
            streams=self.stream.tolist(),
            limit_bytes=limit_bytes,
            expandable=expandable,
        )

    def by_category(self, block_bytes: np.ndarray, event: int) -> dict[str, int]:
        """Bytes of live blocks after an event, by category name. block_bytes: bytes of each allocation's block."""
        done = self.order[: event + 1]
        alive = np.zeros(len(self.size_bytes), dtype=bool)
        alive[done[done >= 0]] = True
        alive[~done[done < 0]] = False
        bytes_of = [int(block_bytes[alive & (self.category == index)].sum()) for index in range(len(CATEGORY_NAMES))]
        return dict(zip(CATEGORY_NAMES, bytes_of, strict=True))


def step_events(trace: Trace, *, blas_workspace_bytes: int = 0, most_micro_batches: int = 2) -> Events:
    """The events of two optimizer steps in a process that has just built its model.

    Storages that exist before the step come first, in the order of their allocation, with what is freed meanwhile where
    trace.loading shows it; optimizer state is allocated when the optimizer first runs. Each thread that calls cuBLAS (the main
    thread, and autograd's in backward) allocates a workspace with its first product and keeps it. Storages that outlive a step
    are freed before the next step.

    Arguments:
        blas_workspace_bytes: workspace of one thread; 0 if there is none.
        most_micro_batches: how many micro-batches of an accumulated step to run. A third only repeats the second.
    """
    sequence, storages, length = trace.sequence, trace.storages, len(trace.sequence)
    seconds = min(trace.accumulation, most_micro_batches) - 1  # how often the second micro-batch runs
    second = sequence.micro_step == 1
    slots = _slots(second, max(1, seconds))
    duration = int(slots[0][length]) + 1
    allocations = _Allocations()

    before = np.flatnonzero(storages.born == BEFORE)
    stays = storages.died[before] >= length
    updates = np.flatnonzero(sequence.phase == PHASES.index("optimizer"))
    update = int(updates[0]) if len(updates) else -1
    late = (storages.category[before] == _STATE) & (storages.died[before] >= update) & (update >= 0)
    birth = np.where(late, slots[0][update], BEFORE) * _MOMENTS + _BIRTH
    if trace.header.strategy.mesh.devices == 1:  # a rank's part is other storages
        birth[~late] = allocations.add_loading(trace.loading, storages.size_bytes[before[~late]])
    death = slots[0][storages.died[before]] * _MOMENTS + _DEATH
    allocations.add(before, storages, BEFORE, birth, np.where(stays, _NEVER, death))
    gone = before[~stays]  # replaced in the step; allocated again before the next
    allocations.add(
        gone,
        storages,
        BEFORE,
        np.full(len(gone), (duration - 1) * _MOMENTS + _AGAIN),
        death[~stays] + duration * _MOMENTS,
    )

    scratch = trace.operations.column("workspace_bytes")[sequence.operation]
    for step in range(2):
        for repeat, slot in enumerate(slots):
            now = (slot + step * duration) * _MOMENTS
            runs = (~second if repeat == 0 else np.zeros(length, dtype=bool)) | (second & (repeat < seconds))
            born = np.flatnonzero((storages.born >= 0) & np.append(runs, False)[storages.born])
            birth, death = now[storages.born[born]] + _BIRTH, now[storages.died[born]] + _DEATH
            allocations.add(born, storages, storages.born[born], birth, death)
            used = np.flatnonzero(runs & (scratch > 0))
            ends = now[used] + _SCRATCH_END
            allocations.add_sizes(scratch[used], _TEMPORARY, used, sequence.stream[used], now[used] + _SCRATCH, ends)
    if blas_workspace_bytes:
        gemm = trace.operations.kind[sequence.operation] == _GEMM
        backward = np.isin(sequence.phase, [PHASES.index("backward"), PHASES.index("recompute")])
        for thread in (gemm & ~backward, gemm & backward):
            first = np.flatnonzero(thread)[:1]
            allocations.add_sizes(
                np.full(len(first), blas_workspace_bytes),
                len(CATEGORIES),
                first,
                sequence.stream[first],
                slots[0][first] * _MOMENTS + _HANDLE,
                np.full(len(first), _NEVER),
            )
    return allocations.in_order(duration)


def _slots(second: np.ndarray, repeats: int) -> list[np.ndarray]:
    """The times at which each position runs, one array per run of the second micro-batch.

    Each array has shape (positions + 1,); its last entry is the end.
    """
    length, pause = len(second), int(second.sum())
    later = np.arange(length + 1) > (np.flatnonzero(second)[-1] if pause else length)
    inside = np.append(second, False)
    return [np.arange(length + 1) + pause * np.where(inside, repeat, (repeats - 1) * later) for repeat in range(repeats)]


class _Allocations:
    """Collects allocations, with the moments of their allocation and freeing."""

    def __init__(self) -> None:
        self.columns: list[tuple[np.ndarray, ...]] = []

    def add(
        self, rows: np.ndarray, storages: Storages, position: np.ndarray | int, birth: np.ndarray, death: np.ndarray
    ) -> None:
        """Adds storages by their rows."""
        size, category, stream = storages.size_bytes[rows], storages.category[rows], storages.stream[rows]
        self.add_sizes(size, category, position, stream, birth, death)

    def add_sizes(
        self,
        size: np.ndarray,
        category: np.ndarray | int,
        position: np.ndarray | int,
        stream: np.ndarray,
        birth: np.ndarray,
        death: np.ndarray,
    ) -> None:
        full = np.broadcast_arrays(size, category, position, stream, birth, death)
        self.columns.append(tuple(column[size > 0] for column in full))

    def add_loading(self, loading: Loading, size_bytes: np.ndarray) -> np.ndarray:
        """Adds what is freed before the first step, or in its beginning: stays of a size that no storage has (a bias that the
        first step casts). Returns when storages of these sizes are allocated that live before the step.
        """
        moments = np.full(len(size_bytes), BEFORE * _MOMENTS + _BIRTH)
        # Every other moment, so that frees have theirs between.
        allocated_at = BEFORE * _MOMENTS - 2 * np.arange(len(loading), 0, -1)
        freed_at = np.where(loading.stays, BEFORE * _MOMENTS + _DEATH, allocated_at + 2 * loading.lifetime + 1)
        waiting: dict[int, list[int]] = {}
        for row in np.flatnonzero(loading.stays)[::-1].tolist():
            waiting.setdefault(int(loading.size_bytes[row]), []).append(row)
        taken = np.zeros(len(loading), dtype=bool)
        for number, size in enumerate(size_bytes.tolist()):
            if waiting.get(size):
                row = waiting[size].pop()
                moments[number], taken[row] = allocated_at[row], True
        gone = np.flatnonzero(~taken)
        on_first_stream = np.zeros(len(gone), dtype=np.int8)
        self.add_sizes(loading.size_bytes[gone], _TEMPORARY, BEFORE, on_first_stream, allocated_at[gone], freed_at[gone])
        return moments

    def in_order(self, duration: int) -> Events:
        size, category, position, stream, birth, death = (np.concatenate(c) for c in zip(*self.columns, strict=True))
        index = np.arange(len(size))
        ends = np.flatnonzero(death < _NEVER)
        when = np.concatenate([birth, death[ends]])
        sort = np.argsort(when, kind="stable")
        order, moment = np.concatenate([index, ~ends])[sort], when[sort] // _MOMENTS
        return Events(
            size.astype(np.int64),
            category.astype(np.int64),
            position.astype(np.int64),
            stream.astype(np.int64),
            order.astype(np.int64),
            moment.astype(np.int64),
            duration,
        )
