"""Trace: what one rank does in one optimizer step. Columnar; nothing here or below it needs PyTorch.

A step is a sequence of positions. Each position refers to a distinct operation (stored once, however many layers repeat
it), to the module that ran it and to a phase. Storages are born and die at positions; memory is what lives between.
Every step is recorded with two micro-batches: the first allocates gradients, the second adds to them. Any accumulation
follows from that: positions of the second count `accumulation - 1` times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from gpuwise.errors import FileFormatError, UnsupportedError
from gpuwise.strategy import Strategy

KINDS = (
    "gemm",
    "conv",
    "attention",
    "norm",
    "softmax",
    "loss",
    "elementwise",
    "reduction",
    "embedding",
    "scatter",
    "pool",
    "copy",
    "random",
    "optimizer",
    "rnn",
    "sort",
    "collective",
    "other",
)
PHASES = ("forward", "backward", "recompute", "optimizer")
CATEGORIES = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "input", "communication_buffer")
# Numbers of a distinct operation. batch, m, n, k describe contractions: a (batched) matrix product, a convolution as
# implicit matrix product (batch = groups), attention (batch = batch × heads, m = queries, n = keys, k = head size).
# causal is 1 where flops and bytes already leave out the masked half; kernels is how many launches it takes.
COLUMNS = ("flops", "bytes_read", "bytes_written", "workspace_bytes", "kernels", "batch", "m", "n", "k", "causal")

T = TypeVar("T")
_LOSS_BYTES, _NEAR = 8, 3  # a number at most; operations before and after the loss among which its divisions are
_ON_DISK = {"target": "substrate"}  # names of header fields in files, where they differ
BEFORE = -1  # born position of what lives before the step begins: parameters, optimizer state


@dataclass(frozen=True)
class Header:
    """What the trace is of.

    job: name; fingerprint: of the job's code and shapes; sizes: e.g. {"micro_batch": 4, "seq_len": 2048};
    strategy: precision, recompute, optimizer and mode it was recorded under; parameters and trainable_parameters:
    counts; sample_unit: "sample", "image" or "token"; units_per_sample: tokens a sample, else 1; target:
    "accelerator", "pre-ampere" or "cpu", whose kernels were taken; blocks: paths of the repeated blocks;
    assumptions: guesses, each with the flag that changes it; gradient_shapes: shape of the parameter behind each storage
    of category gradient, in their order, which is that of the model's parameters (empty in older files); averages: an
    average of the parameters is kept up to date after the optimizer's step; own_step: the job updates inside a step of its
    own, recorded as one micro-batch that nothing is accumulated over.
    """

    job: str
    fingerprint: str
    sizes: dict[str, int]
    strategy: Strategy
    parameters: int
    trainable_parameters: int
    sample_unit: str = "sample"
    units_per_sample: int = 1
    target: str = "accelerator"
    torch_version: str = ""
    blocks: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    gradient_shapes: tuple[tuple[int, ...], ...] = ()
    averages: bool = False
    own_step: bool = False

    def check_accumulation(self, accumulation: int) -> None:
        """Raises UnsupportedError where the step has no such number of micro-batches."""
        if self.own_step and accumulation != 1:
            raise UnsupportedError(
                f"{self.job} updates inside a step of its own, so nothing is accumulated before.",
                ["--accumulate 1, with a larger --micro-batch"],
            )

    def to_dict(self) -> dict[str, Any]:
        data = {_ON_DISK.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        return {**data, "strategy": self.strategy.to_dict(), "blocks": list(self.blocks), "assumptions": list(self.assumptions)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Header:
        strategy = Strategy.from_dict(data["strategy"])
        names = {on_disk: name for name, on_disk in _ON_DISK.items()}
        return cls(
            **{
                **{names.get(name, name): value for name, value in data.items()},
                "strategy": strategy,
                "blocks": tuple(data["blocks"]),
                "assumptions": tuple(data["assumptions"]),
                "gradient_shapes": tuple(map(tuple, data.get("gradient_shapes", ()))),
            }
        )


@dataclass(frozen=True)
class Operations:
    """Distinct operations. `values` has shape (operations, len(COLUMNS)) in a Trace, one more axis in a family."""

    name: tuple[str, ...]
    kind: np.ndarray  # index into KINDS
    dtype: tuple[str, ...]  # the dtype computed in: float32, bfloat16, float16, int64, ...
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.name)

    def column(self, name: str) -> np.ndarray:
        return self.values[:, COLUMNS.index(name)]

    @property
    def model_flops(self) -> np.ndarray:
        """Operations as MFU counts them: causal attention in full, and four products in attention's backward, where a
        fused kernel does five because it computes the scores again. Shape (operations,)."""
        flops = self.column("flops") * (1 + self.column("causal"))
        again = np.zeros(len(self), dtype=bool)
        attention = np.flatnonzero(self.kind == KINDS.index("attention"))
        again[attention] = ["_backward" in self.name[row] for row in attention.tolist()]
        return np.where(again, flops * 4 // 5, flops)

    def in_fp16(self) -> Operations:
        """The same operations where bf16 was recorded and fp16 runs: equal sizes, other units."""
        return replace(self, dtype=tuple("float16" if name == "bfloat16" else name for name in self.dtype))

    def in_bf16(self) -> Operations:
        """The same operations where fp16 was recorded and bf16 runs."""
        return replace(self, dtype=tuple("bfloat16" if name == "float16" else name for name in self.dtype))


@dataclass(frozen=True)
class OperationSequence:
    """One row a position of the step: indices of operation, module and phase, and the micro-batch (0, 1; 2: optimizer)."""

    operation: np.ndarray
    module: np.ndarray
    phase: np.ndarray
    micro_step: np.ndarray

    def __len__(self) -> int:
        return len(self.operation)


@dataclass(frozen=True)
class Storages:
    """One row a storage: bytes, category, module that made it, and positions between which it lives.

    It is there while position born runs (born = BEFORE: from the start) and until position died has finished
    (died = number of positions: to the end).
    """

    size_bytes: np.ndarray
    category: np.ndarray
    module: np.ndarray
    born: np.ndarray
    died: np.ndarray

    def __len__(self) -> int:
        return len(self.born)


@dataclass(frozen=True)
class Trace:
    header: Header
    operations: Operations
    sequence: OperationSequence
    storages: Storages
    modules: tuple[str, ...]

    @property
    def accumulation(self) -> int:
        return self.header.strategy.accumulation

    def with_accumulation(self, accumulation: int) -> Trace:
        """The same step over another number of micro-batches. Raises UnsupportedError where it has one alone."""
        self.header.check_accumulation(accumulation)
        strategy = self.header.strategy.but(accumulation=accumulation)
        return replace(self, header=replace(self.header, strategy=strategy))

    @cached_property
    def repeats(self) -> np.ndarray:
        """How often each position runs in one optimizer step. Shape (positions,)."""
        repeats = np.where(self.sequence.micro_step == 1, self.accumulation - 1, 1)
        if self.accumulation == 1 and not self.header.own_step:
            repeats[self._shares] = 0
        return repeats

    @property
    def _shares(self) -> list[int]:
        """Where a loss is divided by the accumulation, and its gradient: steps are recorded with two micro-batches, and one of
        a single micro-batch divides by nothing. Forward ends with the one, backward begins with the other."""
        columns = [COLUMNS.index(name) for name in ("bytes_read", "bytes_written")]
        small = self.operations.values[:, columns].sum(axis=1) <= 4 * _LOSS_BYTES
        divides = np.array([name.startswith("aten.div.Tensor") for name in self.operations.name], dtype=bool) & small
        divided = divides[self.sequence.operation] & (self.sequence.micro_step == 0)
        found = []
        for phase, near in (("forward", slice(-_NEAR, None)), ("backward", slice(_NEAR))):
            places = np.flatnonzero((self.sequence.phase == PHASES.index(phase)) & (self.sequence.micro_step == 0))[near]
            found.append(places[divided[places]].tolist())
        return [found[0][-1], found[1][0]] if all(found) else []

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for this trace: what follows from it alone serves every chip it is priced on."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def counts(self, phase: str | None = None) -> np.ndarray:
        """How often each distinct operation runs in one optimizer step, in one phase or in all. Shape (operations,)."""
        counts: np.ndarray = self._phase_counts.sum(axis=0) if phase is None else self._phase_counts[PHASES.index(phase)]
        return counts

    @cached_property
    def _phase_counts(self) -> np.ndarray:
        """Shape (phases, operations)."""
        cell = self.sequence.phase.astype(np.int64) * len(self.operations) + self.sequence.operation
        counts = np.bincount(cell, weights=self.repeats, minlength=len(PHASES) * len(self.operations))
        return counts.astype(np.int64).reshape(len(PHASES), -1)

    def flops(self, phase: str | None = None) -> int:
        """Floating-point operations executed in one optimizer step (a multiply-add is two)."""
        return int(self.counts(phase) @ self.operations.column("flops"))

    @property
    def model_flops(self) -> int:
        """Operations of the model in one step as MFU counts them, recomputation left out."""
        return int((self.counts("forward") + self.counts("backward")) @ self.operations.model_flops)

    @property
    def samples(self) -> int:
        """Samples one rank sees in one optimizer step."""
        return self.header.sizes["micro_batch"] * self.accumulation

    def check(self) -> Trace:
        """Self, or FileFormatError where indices or lengths do not agree."""
        ops, seq, sto, length = self.operations, self.sequence, self.storages, len(self.sequence)
        shape = (len(ops), len(COLUMNS))
        if len({len(seq.operation), len(seq.module), len(seq.phase), len(seq.micro_step)}) != 1:
            raise FileFormatError("the trace is damaged: columns of the sequence differ in length.")
        if ops.values.shape[:2] != shape or len(ops.kind) != len(ops) or len(ops.dtype) != len(ops):
            raise FileFormatError("the trace is damaged: columns of the operations differ in length.")
        if len({len(sto.size_bytes), len(sto.category), len(sto.module), len(sto.born), len(sto.died)}) != 1:
            raise FileFormatError("the trace is damaged: columns of the storages differ in length.")
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
        ]
        for column, low, high in bounds:
            if len(column) and (column.min() < low or column.max() >= high):
                raise FileFormatError("the trace is damaged: an index points outside its table.")
        if (sto.died < sto.born).any():
            raise FileFormatError("the trace is damaged: a storage dies before it is born.")
        return self
