"""Trace: what one rank does in one optimizer step. Columnar; nothing here or below it needs PyTorch.

A step is a sequence of positions. Each position refers to:

- a distinct operation, stored once however many layers repeat it,
- the module that ran it,
- a phase.

Storages are born and die at positions; the memory in use is what lives at a position.
A step is recorded with two micro-batches: the first allocates gradients, the second adds to them. Any other accumulation
follows: positions of the second count `accumulation - 1` times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from gpuwise.errors import FileFormatError
from gpuwise.trace.header import RECORDED, Header
from gpuwise.trace.loading import Loading
from gpuwise.trace.tables import (
    BEFORE,
    CATEGORIES,
    COLUMNS,
    KINDS,
    NO_GROUP,
    NO_LAYOUT,
    PHASES,
    Operations,
    OperationSequence,
    Storages,
    Waits,
)

T = TypeVar("T")
MOST_STREAMS = 128
_INPUT, _COPY = CATEGORIES.index("input"), KINDS.index("copy")
_LOSS_BYTES, _NEAR = 8, 3  # a number at most; operations before and after the loss among which its divisions are


@dataclass(frozen=True)
class Trace:
    """One optimizer step of one rank.

    Attributes:
        header: job, sizes and strategy of the step.
        operations: the distinct operations.
        sequence: the positions, in the order they run.
        storages: the memory that lives between positions.
        modules: paths of the model's modules, which columns `module` index; the first is "", the model itself.
        waits: what orders the streams; none by default, as where there is one stream.
        loading: what is allocated and freed before the first step; none by default: storages that live before the step are then
            allocated in their order.
    """

    header: Header
    operations: Operations
    sequence: OperationSequence
    storages: Storages
    modules: tuple[str, ...]
    waits: Waits = field(default_factory=Waits)
    loading: Loading = field(default_factory=Loading)

    @property
    def accumulation(self) -> int:
        return self.header.strategy.accumulation

    def with_accumulation(self, accumulation: int) -> Trace:
        """The same step with another number of micro-batches. Raises UnsupportedError if it supports only one."""
        self.header.check_accumulation(accumulation)
        strategy = self.header.strategy.but(accumulation=accumulation)
        return replace(self, header=replace(self.header, strategy=strategy))

    @cached_property
    def repeats(self) -> np.ndarray:
        """How often each position runs in one optimizer step. Shape (positions,)."""
        repeats = np.where(self.sequence.micro_step == 1, self.accumulation - self.header.micro_batches + 1, 1)
        if self.accumulation == 1 and self.header.micro_batches == RECORDED and not self.header.own_step:
            repeats[self._divisions] = 0
        return repeats

    @cached_property
    def uploads(self) -> np.ndarray:
        """Whether each position copies a tensor of the batch from the host: its copy engine does that, over the link that
        gpuwise.cost.inputs prices. Shape (positions,)."""
        mask = np.zeros(len(self.sequence), dtype=bool)
        if self.header.target == "cpu" or not len(mask):
            return mask
        inputs = (self.storages.category == _INPUT) & (self.storages.born >= 0) & (self.storages.born < len(mask))
        born, operation = self.storages.born[inputs], self.sequence.operation
        copies = self.operations.kind[operation[born]] == _COPY
        # In a stage without the copy the storage is born at some other position.
        copies &= self.operations.column("bytes_written")[operation[born]] == self.storages.size_bytes[inputs]
        mask[born[copies]] = True
        return mask

    @cached_property
    def device_repeats(self) -> np.ndarray:
        """`repeats` of what the device computes: 0 for uploads. Shape (positions,)."""
        result: np.ndarray = np.where(self.uploads, 0, self.repeats)
        return result

    @property
    def _divisions(self) -> list[int]:
        """Positions that divide a loss by the accumulation, and its gradient: the end of forward and the start of backward.

        Steps are recorded with two micro-batches; a step of a single one divides by nothing.
        """
        columns = [COLUMNS.index(name) for name in ("bytes_read", "bytes_written")]
        small = self.operations.values[:, columns].sum(axis=1) <= 4 * _LOSS_BYTES
        divides = np.array([name.startswith("aten.div.Tensor") for name in self.operations.name], dtype=bool) & small
        divided = divides[self.sequence.operation] & (self.sequence.micro_step == 0)
        divisions = []
        for phase, near in (("forward", slice(-_NEAR, None)), ("backward", slice(_NEAR))):
            positions = np.flatnonzero((self.sequence.phase == PHASES.index(phase)) & (self.sequence.micro_step == 0))[near]
            divisions.append(positions[divided[positions]].tolist())
        return [divisions[0][-1], divisions[1][0]] if all(divisions) else []

    @cached_property
    def _derived(self) -> dict[Hashable, object]:
        return {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, computed once for this trace, for all chips that it is priced on."""
        if key not in self._derived:
            self._derived[key] = make()
        return cast(T, self._derived[key])

    def counts(self, phase: str | None = None) -> np.ndarray:
        """How often each distinct operation runs in one optimizer step, in one phase or in all, without uploads. Shape
        (operations,)."""
        counts: np.ndarray = self._phase_counts.sum(axis=0) if phase is None else self._phase_counts[PHASES.index(phase)]
        return counts

    @cached_property
    def _phase_counts(self) -> np.ndarray:
        """`counts` of each phase, shape (phases, operations)."""
        cell = self.sequence.phase.astype(np.int64) * len(self.operations) + self.sequence.operation
        counts = np.bincount(cell, weights=self.device_repeats, minlength=len(PHASES) * len(self.operations))
        return counts.astype(np.int64).reshape(len(PHASES), -1)

    def flops(self, phase: str | None = None) -> int:
        """Floating-point operations executed in one optimizer step (a multiply-add is two)."""
        return _total(self.counts(phase), self.operations.column("flops"))

    @property
    def model_flops(self) -> int:
        """Operations of the model in one step as MFU counts them, recomputation left out."""
        return _total(self.counts("forward") + self.counts("backward"), self.operations.model_flops)

    @property
    def samples(self) -> int:
        """Samples one rank sees in one optimizer step."""
        return self.header.sizes["micro_batch"] * self.accumulation

    def check(self) -> Trace:
        """Returns self. Raises FileFormatError if indices or lengths do not agree."""
        ops, seq, sto, length = self.operations, self.sequence, self.storages, len(self.sequence)
        shape = (len(ops), len(COLUMNS))
        waits = self.waits
        if len({len(seq.operation), len(seq.module), len(seq.phase), len(seq.micro_step), len(seq.stream)}) != 1:
            raise FileFormatError("the trace is damaged: columns of the sequence differ in length.")
        if ops.values.shape[:2] != shape or any(len(getattr(ops, column.name)) != len(ops) for column in fields(ops)):
            raise FileFormatError("the trace is damaged: columns of the operations differ in length.")
        if len({len(getattr(sto, column.name)) for column in fields(sto)}) != 1:
            raise FileFormatError("the trace is damaged: columns of the storages differ in length.")
        if len({len(waits.position), len(waits.stream), len(waits.on)}) != 1:
            raise FileFormatError("the trace is damaged: columns of the waits differ in length.")
        if not self.loading.is_sound:
            raise FileFormatError("the trace is damaged: its allocations before the first step make no sense.")
        bounds = [
            (ops.kind, 0, len(KINDS)),
            (seq.operation, 0, len(ops)),
            (seq.module, 0, len(self.modules)),
            (seq.phase, 0, len(PHASES)),
            (seq.micro_step, 0, 3),
            (sto.category, 0, len(CATEGORIES)),
            (sto.module, 0, len(self.modules)),
            (sto.born, BEFORE, length),
            (sto.died, 0, length + 1),
            (ops.group, NO_GROUP, len(self.header.groups)),
            (ops.channels_last, NO_LAYOUT, 2),
            (np.array([part.module for part in self.header.updated]), 0, len(self.modules)),
            (seq.stream, 0, MOST_STREAMS),
            (sto.stream, 0, MOST_STREAMS),
            (waits.position, 0, length + 1),
            (waits.stream, 0, MOST_STREAMS),
            (waits.on, 0, length),
        ]
        for column, low, high in bounds:
            if len(column) and (column.min() < low or column.max() >= high):
                raise FileFormatError("the trace is damaged: an index points outside its table.")
        if (sto.died < sto.born).any():
            raise FileFormatError("the trace is damaged: a storage dies before it is born.")
        if (waits.on >= waits.position).any():
            raise FileFormatError("the trace is damaged: a stream waits for what is launched later.")
        return self


def _total(counts: np.ndarray, values: np.ndarray) -> int:
    """The sum of values, each as often as it counts; exact where it passes int64, as operations of a step may."""
    return sum(count * value for count, value in zip(counts.tolist(), values.tolist(), strict=True))
