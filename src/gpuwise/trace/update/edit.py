"""Edit: a recorded step without its optimizer, to which operations and storages are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.tables import (
    BEFORE,
    CATEGORIES,
    KINDS,
    PHASES,
    OperationRow,
    Operations,
    OperationSequence,
    Storages,
    Waits,
)
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.rows import Temporary, UpdateRows

END = -2  # behind everything recorded; of a storage: it lives to the end of the step
_ROOM = 2**24  # numbers between two recorded positions, for the rows added there
_ADD, _NEW = "aten.add_.Tensor", "aten.new_empty_strided.default"

Recorded = TypeVar("Recorded", bound=Trace | TraceFamily)


class Arrival(NamedTuple):
    """When backward has a gradient.

    Attributes:
        gradient: its index.
        position: the last one of the first micro-batch before the gradient is kept.
        again: the storage in which the second micro-batch has it; None where there is no second.
        added_at: the position that adds that to the first micro-batch's; None where there is no second.
    """

    gradient: int
    position: int
    again: int | None
    added_at: int | None


class Edit(Generic[Recorded]):
    """A step whose optimizer's rows, and state, are taken out.

    Gradients die at the end of the step unless `end_gradient` says otherwise. Rows are ordered by slots: a recorded position
    is slot position × _ROOM, and the slots between two positions are for the rows that `insert` adds.

    Attributes:
        gradients: rows of the storages, in the order of the model's parameters.
        sizes_of_gradients: their bytes.
        modules_of_parameters: modules of the parameters that are updated: those of the gradients, or what a rank's header says.
        clips_scaled: whether gradients are unscaled by the update and then clipped, as in fp16.

    Raises UnsupportedError where more than the optimizer is part of the update, and where ranks talk to each other in it.
    """

    def __init__(self, trace: Recorded):
        if trace.header.averages:
            raise UnsupportedError(
                "an average of the parameters is kept in this step: its update must be recorded, it cannot be composed.",
                ["a Job without ema_decay"],
            )
        self._trace: Recorded = trace
        sequence, storages = trace.sequence, trace.storages
        self._stays = sequence.phase != PHASES.index("optimizer")
        if (trace.operations.kind[sequence.operation[~self._stays]] == KINDS.index("collective")).any():
            raise UnsupportedError(
                "ranks exchange numbers in this update: it must be recorded, it cannot be composed.",
                ["name the job itself, which is recorded"],
            )
        stay = np.flatnonzero(self._stays)
        self._length = int(stay[-1]) + 1 if len(stay) else 0
        # Scaled gradients are clipped between two parts of the update: behind its first rows, which are taken out, too.
        self._update = len(sequence) if self._stays.all() else int(self._stays.argmin())
        self.clips_scaled = self._update < self._length
        self._size = storages.size_bytes if storages.size_bytes.ndim == 1 else storages.size_bytes[:, 0]
        self._category = storages.category.copy()
        maker_stays = np.append(self._stays, True)[storages.born]  # the last: of storages that are there before the step
        self._exists = (storages.category != CATEGORIES.index("optimizer_state")) & maker_stays
        self._born = np.where(storages.born < 0, BEFORE, storages.born.astype(np.int64) * _ROOM)
        self._last = self._length * _ROOM - 1
        at_end = np.where(storages.died >= len(sequence), self._length * _ROOM, self._last)
        self._died = np.where(storages.died >= self._length, at_end, storages.died.astype(np.int64) * _ROOM)
        self.gradients = np.flatnonzero(storages.category == CATEGORIES.index("gradient"))
        self.sizes_of_gradients: list[int] = self._size[self.gradients].tolist()
        of_rank = [part.module for part in trace.header.updated]
        self.modules_of_parameters: list[int] = of_rank or storages.module[self.gradients].tolist()
        self._rows: list[OperationRow] = []
        self._inserted: list[tuple[int, int, int]] = []  # slot, phase and micro-step of each added row
        self._added: list[tuple[int, int, int, int, int]] = []  # size, category, module, born, died
        self._used: dict[int, int] = {}

    def insert(
        self, position: int, rows: Sequence[OperationRow], temporaries: Iterable[Temporary], *, phase: str, micro_step: int
    ) -> int:
        """Adds rows behind a recorded position (END: the last), and the memory they take and free. Returns the slot of the
        last of them."""
        slots = self._take_slots(position, len(rows))
        self._fill(slots, rows, temporaries, phase=phase, micro_step=micro_step)
        return slots[-1]

    def insert_update(self, update: UpdateRows) -> None:
        """Adds the update of all parameters: what unscales gradients before the step clips them, the rest behind."""
        slots = [
            *self._take_slots(self._update - 1, update.unscaling),
            *self._take_slots(END, len(update.rows) - update.unscaling),
        ]
        self._fill(slots, update.rows, update.temporaries, phase="optimizer", micro_step=2)

    def _take_slots(self, position: int, count: int) -> range:
        """The next slots behind a recorded position."""
        slot = (self._length - 1 if position == END else min(position, self._length - 1)) * _ROOM
        first = slot + self._used.get(slot, 0) + 1
        self._used[slot] = self._used.get(slot, 0) + count
        return range(first, first + count)

    def _fill(
        self,
        slots: Sequence[int],
        rows: Sequence[OperationRow],
        temporaries: Iterable[Temporary],
        *,
        phase: str,
        micro_step: int,
    ) -> None:
        self._rows += rows
        self._inserted += [(slot, PHASES.index(phase), micro_step) for slot in slots]
        self._added += [(t.size_bytes, CATEGORIES.index("temporary"), 0, slots[t.born], slots[t.died]) for t in temporaries]

    def add(self, size_bytes: int, category: str, module: int, born: int, died: int) -> None:
        """Adds a storage; born and died are slots, BEFORE or END."""
        if size_bytes:
            died = self._length * _ROOM if died == END else died
            self._added.append((size_bytes, CATEGORIES.index(category), module, born, died))

    def add_states(self, sizes: Sequence[Sequence[int]], modules: Sequence[int]) -> None:
        """Adds the optimizer's state of each parameter, which is there all the time. modules: of the parameters."""
        category, died = CATEGORIES.index("optimizer_state"), self._length * _ROOM
        pairs = zip(sizes, modules, strict=True)
        self._added += [(size, category, module, BEFORE, died) for of_one, module in pairs for size in of_one if size]

    def drop(self, position: int) -> None:
        """Takes out a recorded position."""
        self._stays[position] = False

    def drop_second_micro_batch(self) -> None:
        self._stays &= self._trace.sequence.micro_step != 1
        born = self._trace.storages.born
        self._exists &= (born < 0) | (self._trace.sequence.micro_step[np.maximum(born, 0)] != 1)

    def end_gradient(self, index: int, slot: int) -> None:
        """Lets a gradient die at a slot."""
        self._died[self.gradients[index]] = slot

    def set_category(self, storage: int, category: str) -> None:
        self._category[storage] = CATEGORIES.index(category)

    def arrivals(self) -> list[Arrival]:
        """When backward has each gradient, in that order.

        The second micro-batch does what the first did, and adds a gradient where the first keeps it.
        """
        sequence, storages = self._trace.sequence, self._trace.storages
        is_add, is_new = (
            np.array([n == name for n in self._trace.operations.name])[sequence.operation].tolist() for name in (_ADD, _NEW)
        )
        first, second = (np.flatnonzero(self._stays & (sequence.micro_step == step)).tolist() for step in (0, 1))
        born, size = storages.born.tolist(), self._size.tolist()
        waiting: dict[tuple[int, int], list[int]] = {}
        for index, gradient in enumerate(self.gradients.tolist()):
            waiting.setdefault((born[gradient], size[gradient]), []).append(index)
        dying: dict[int, list[int]] = {}
        for storage in np.flatnonzero(self._exists & (self._category == CATEGORIES.index("temporary"))).tolist():
            dying.setdefault(int(storages.died[storage]), []).append(storage)
        arrivals, same, done = [], {BEFORE: BEFORE}, 0  # same: position of the second micro-batch -> of the first
        for position in second:
            added = dying.get(position, []) if is_add[position] else []
            candidates = [(waiting.get((same.get(born[s], BEFORE), size[s]), []), s) for s in added]
            if usable := [(indices, s) for indices, s in candidates if indices]:
                indices, storage = usable[0]
                arrivals.append(Arrival(indices.pop(0), first[done - 1], storage, position))
            elif added and done + 1 < len(first) and is_new[first[done]]:
                # Laid out unlike its parameter: the first micro-batch keeps a copy, a new storage and what fills it.
                copies = [indices for (at, _), indices in waiting.items() if at == first[done] and indices]
                if copies:
                    arrivals.append(Arrival(copies[0].pop(0), first[done + 1], added[0], position))
                done += 2
            elif done < len(first):
                same[position] = first[done]
                done += 1
        left = [index for indices in waiting.values() for index in indices]  # never added: of one micro-batch only
        return arrivals + [Arrival(index, born[self.gradients[index]], None, None) for index in left]

    def result(self, strategy: Strategy, *, gradient_shapes: tuple[tuple[int, ...], ...]) -> Recorded:
        """The edited step, a Trace or a TraceFamily as the original; strategy and gradient_shapes are those of its header."""
        trace, sequence, storages = self._trace, self._trace.sequence, self._trace.storages
        names, index = dict.fromkeys(self._rows), {}
        for number, row in enumerate(names):
            index[row] = len(trace.operations) + number
        inserted = np.array(self._inserted, dtype=np.int64).reshape(-1, 3)
        recorded = np.flatnonzero(self._stays)
        slots = np.concatenate([recorded * _ROOM, inserted[:, 0]])
        order = np.argsort(slots, kind="stable")
        slots = slots[order]

        def column(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.concatenate([old[recorded], new])[order].astype(old.dtype)

        def position(slot: np.ndarray) -> np.ndarray:
            """The position of a slot in the result, or the one before it where that row was taken out."""
            inside = np.searchsorted(slots, slot, side="right") - 1
            return np.where(slot >= self._length * _ROOM, len(slots), inside).astype(np.int32)

        added = np.array(self._added, dtype=np.int64).reshape(-1, 5)
        kept = self._exists
        more = Operations.of_rows(names)
        size_bytes, values = added[:, 0], more.values
        if isinstance(trace, TraceFamily):  # a constant: the first term
            size_bytes = _constant(size_bytes, storages.size_bytes.shape[-1])
            values = _constant(values, trace.operations.values.shape[-1])
        values = values.reshape(len(names), *trace.operations.values.shape[1:])
        return replace(
            trace,
            header=replace(trace.header, strategy=strategy, gradient_shapes=gradient_shapes),
            operations=trace.operations.followed_by(replace(more, values=values)),
            sequence=OperationSequence(
                column(sequence.operation, np.array([index[row] for row in self._rows], dtype=np.int64)),
                column(sequence.module, np.zeros(len(inserted), dtype=np.int64)),
                column(sequence.phase, inserted[:, 1]),
                column(sequence.micro_step, inserted[:, 2]),
                column(sequence.stream, np.zeros(len(inserted), dtype=np.int64)),
            ),
            storages=Storages(
                size_bytes=np.concatenate([storages.size_bytes[kept], size_bytes]),
                category=np.concatenate([self._category[kept], added[:, 1]]).astype(np.int8),
                module=np.concatenate([storages.module[kept], added[:, 2]]).astype(np.int32),
                born=position(np.concatenate([self._born[kept], added[:, 3]])),
                died=position(np.concatenate([self._died[kept], added[:, 4]])),
                stream=np.concatenate([storages.stream[kept], np.zeros(len(added), dtype=np.int8)]),
            ),
            waits=_moved(trace.waits, slots, self._update),
        )


def _moved(waits: Waits, slots: np.ndarray, update: int) -> Waits:
    """The waits of a recorded step where its rows are now at these slots. update: where its optimizer began, which waits for
    gradients."""
    waiting = np.where(waits.position == update, (update - 1) * _ROOM + 1, waits.position.astype(np.int64) * _ROOM)
    position = np.searchsorted(slots, waiting, side="left").astype(np.int32)
    on = np.searchsorted(slots, waits.on.astype(np.int64) * _ROOM, side="right").astype(np.int32) - 1
    stays = (on >= 0) & (on < position)
    return Waits(position[stays], waits.stream[stays], on[stays])


def _constant(values: np.ndarray, terms: int) -> np.ndarray:
    """Polynomials that are these numbers everywhere. Shape (*values.shape, terms)."""
    return np.concatenate([values[..., None], np.zeros((*values.shape, terms - 1), dtype=values.dtype)], axis=-1)
