"""The tables of a trace: its distinct operations, the order in which they run, and the storages they allocate.

Columnar: each field is an array with one entry a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

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
# Numbers of a distinct operation, the columns of Operations.values.
# batch, m, n, k describe contractions: a (batched) matrix product, a convolution as an implicit matrix product
# (batch = groups), attention (batch = batch × heads, m = queries, n = keys, k = head size).
# Of a norm, m and k are rows and elements a row; of a pool, windows and elements a window; of a
# bilinear resize, m is images × channels, n pixels of a result; of a scatter, m counts indices.
# causal is 1 where flops and bytes leave out the masked half; kernels is the number of launches.
# A collective reads its input and writes its result: the larger of them is the full tensor, its payload.
COLUMNS = ("flops", "bytes_read", "bytes_written", "workspace_bytes", "kernels", "batch", "m", "n", "k", "causal")


class OperationValues(NamedTuple):
    """The numbers of one operation: COLUMNS, each 0 by default."""

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    workspace_bytes: int = 0
    kernels: int = 0
    batch: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    causal: int = 0


assert OperationValues._fields == COLUMNS


class OperationRow(NamedTuple):
    """One distinct operation: a row of Operations, whose fields have its meaning."""

    name: str
    kind: int
    dtype: str
    values: OperationValues
    group: int = -1
    channels_last: int = -1


NO_GROUP = -1  # of an operation that no other device takes part in
NO_LAYOUT = -1  # of an operation whose layout does not matter, or was not recorded
TURNED = 0  # of an elementwise operation or a copy on an accelerator, which reads an operand across its rows
_COLLECTIVE = KINDS.index("collective")
BEFORE = -1  # position at which a storage is born that lives before the step begins: parameters, optimizer state


def _absent() -> np.ndarray:
    return np.zeros(0, dtype=np.int8)


@dataclass(frozen=True)
class Operations:
    """Distinct operations, one a row, however often a step runs them.

    Attributes:
        name: name of the operator, such as "aten.mm.default".
        kind: index into KINDS. Shape (operations,).
        dtype: type of the computation: "float32", "bfloat16", "float16", "int64", ...
        values: the numbers that COLUMNS names. Shape (operations, len(COLUMNS)); a family has one more axis, of polynomial
            terms.
        group: of a collective, index into Header.groups; else NO_GROUP, as is every entry by default. Shape (operations,).
        channels_last: of a convolution, pool or batch norm of images, 1 if it computes with channels innermost, 0 if not; of
            an elementwise operation or a copy, TURNED if the dimension along which its result is contiguous is not that of an
            operand; else NO_LAYOUT, as is every entry by default. Shape (operations,).
    """

    name: tuple[str, ...]
    kind: np.ndarray
    dtype: tuple[str, ...]
    values: np.ndarray
    group: np.ndarray = field(default_factory=_absent)
    channels_last: np.ndarray = field(default_factory=_absent)

    def __post_init__(self) -> None:
        for name, default in (("group", NO_GROUP), ("channels_last", NO_LAYOUT)):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.name), default, dtype=np.int8))

    def __len__(self) -> int:
        return len(self.name)

    @classmethod
    def of_rows(cls, rows: Iterable[OperationRow]) -> Operations:
        """The table of these rows."""
        rows = list(rows)
        return cls(
            name=tuple(row.name for row in rows),
            kind=np.array([row.kind for row in rows], dtype=np.int8),
            dtype=tuple(row.dtype for row in rows),
            values=np.array([row.values for row in rows], dtype=np.int64).reshape(-1, len(COLUMNS)),
            group=np.array([row.group for row in rows], dtype=np.int8),
            channels_last=np.array([row.channels_last for row in rows], dtype=np.int8),
        )

    def take(self, rows: np.ndarray) -> Operations:
        """The chosen rows, in their order."""
        arrays = {name: getattr(self, name)[rows] for name in _ARRAYS}
        chosen = rows.tolist()
        return Operations(name=tuple(self.name[i] for i in chosen), dtype=tuple(self.dtype[i] for i in chosen), **arrays)

    def followed_by(self, other: Operations) -> Operations:
        """The rows of both tables."""
        arrays = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _ARRAYS}
        return Operations(name=self.name + other.name, dtype=self.dtype + other.dtype, **arrays)

    def column(self, name: str) -> np.ndarray:
        return self.values[:, COLUMNS.index(name)]

    @property
    def is_collective(self) -> np.ndarray:
        """Which are collectives among several ranks. Shape (operations,)."""
        mask: np.ndarray = (self.kind == _COLLECTIVE) & (self.group != NO_GROUP)
        return mask

    @property
    def payload_bytes(self) -> np.ndarray:
        """Bytes of the full tensor of a collective, what it gathers, scatters, reduces or sends; 0 of other operations.
        Shape (operations,)."""
        payload = np.maximum(self.column("bytes_read"), self.column("bytes_written"))
        return np.where(self.kind == KINDS.index("collective"), payload, 0)

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


_ARRAYS = tuple(column.name for column in fields(Operations) if column.name not in ("name", "dtype"))


@dataclass(frozen=True)
class OperationSequence:
    """The positions of a step in the order they run, one a row. All columns have shape (positions,).

    Attributes:
        operation: row of the Operations.
        module: index into the trace's modules.
        phase: index into PHASES.
        micro_step: 0 in the first micro-batch, 1 in the second, 2 in the optimizer's update. Of a pipeline: 1 in the
            micro-batch that stands for all that were not recorded (Header.micro_batches), 0 in the others.
        stream: number of the device's stream that runs it; 0, the default, is the one that computes.
    """

    operation: np.ndarray
    module: np.ndarray
    phase: np.ndarray
    micro_step: np.ndarray
    stream: np.ndarray = field(default_factory=_absent)

    def __post_init__(self) -> None:
        if not len(self.stream):
            object.__setattr__(self, "stream", np.zeros(len(self.operation), dtype=np.int8))

    def __len__(self) -> int:
        return len(self.operation)


@dataclass(frozen=True)
class Storages:
    """The memory of the step's tensors, one storage a row. All columns have shape (storages,).

    Attributes:
        size_bytes: bytes of the storage; a family has one more axis, of polynomial terms.
        category: index into CATEGORIES.
        module: module of the operation that allocates it, index into the trace's modules.
        born: the first position at which it is alive; BEFORE: it is alive when the step begins.
        died: the last position at which it is alive; the number of positions: it is alive when the step ends.
        stream: the stream that allocates it, whose pool of the allocator it comes from; 0 by default.
    """

    size_bytes: np.ndarray
    category: np.ndarray
    module: np.ndarray
    born: np.ndarray
    died: np.ndarray
    stream: np.ndarray = field(default_factory=_absent)

    def __post_init__(self) -> None:
        if not len(self.stream):
            object.__setattr__(self, "stream", np.zeros(len(self.born), dtype=np.int8))

    def __len__(self) -> int:
        return len(self.born)


@dataclass(frozen=True)
class Waits:
    """What orders the streams of a step: one wait a row. All columns have shape (waits,), none by default.

    A stream runs its own positions in their order. What its positions from `position` on need is done when position `on`, of
    another stream, is done.

    Attributes:
        position: the first position that waits; it may be of any stream, and those before it have been launched.
        stream: number of the stream that waits: its positions from `position` on.
        on: the position that must be done.
    """

    position: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    stream: np.ndarray = field(default_factory=_absent)
    on: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.position)
