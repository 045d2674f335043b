"""UpdateRows: the operations and memory of one optimizer step, put together from recorded updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from gpuwise.trace.tables import COLUMNS, KINDS, OperationRow, OperationValues
from gpuwise.trace.update.templates import RecordedUpdate, RowTemplate, UpdateTemplate, form_of, sizes_of, value

# Tensors and 65,536-element chunks that one launch of a many-tensor kernel takes, for four tensor lists
# (aten/src/ATen/native/cuda/MultiTensorApply.cuh: depth_to_max_tensors, depth_to_max_blocks, kChunkSize).
_TENSORS_A_LAUNCH, _CHUNKS_A_LAUNCH, _CHUNK = 36, 320, 65536
_PRODUCT, _OVER_MANY = KINDS.index("gemm"), KINDS.index("optimizer")
_KERNELS = COLUMNS.index("kernels")


def tensors_and_chunks(sizes: Sequence[int]) -> tuple[int, int]:
    """How many tensors, and how many chunks of them, a kernel over tensors of these element counts takes."""
    return len(sizes), sum(-(-size // _CHUNK) for size in sizes)


def launches_of(tensors: int, chunks: int) -> int:
    """Launches of a foreach or fused optimizer kernel over so many tensors and chunks."""
    return max(1, -(-tensors // _TENSORS_A_LAUNCH), -(-chunks // _CHUNKS_A_LAUNCH))


def launches_of_many(sizes: Sequence[int]) -> int:
    """Launches of a foreach or fused optimizer kernel over tensors of these element counts."""
    return launches_of(*tensors_and_chunks(sizes))


def launches_of_counted(counted: Iterable[tuple[int, int]]) -> int:
    """`launches_of_many` of numbers of tensors with their element counts."""
    pairs = list(counted)
    return launches_of(sum(times for times, _ in pairs), sum(times * -(-size // _CHUNK) for times, size in pairs))


@dataclass(frozen=True)
class Parameter:
    """A trainable parameter.

    Attributes:
        shape: shape of the tensor.
        element_bytes: bytes of one element.
        hidden: whether it is a matrix of a repeated block, which muon takes. Default False.
    """

    shape: tuple[int, ...]
    element_bytes: int
    hidden: bool = False

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.element_bytes

    @property
    def dtype(self) -> str:
        return {2: "bfloat16", 4: "float32", 8: "float64"}.get(self.element_bytes, f"{self.element_bytes}-byte")


@dataclass
class Temporary:
    """Temporary memory of an update.

    Attributes:
        size_bytes: bytes of the storage.
        born: the row of the update that allocates it.
        died: the last row at which it is alive; -1 (the default): the update has not freed it.
        until: then the row of the next parameters of each form at which it is freed.
    """

    size_bytes: int
    born: int
    died: int = -1
    until: tuple[tuple[str, int], ...] = ()


class UpdateRows:
    """Rows and temporaries of an optimizer's update.

    Arguments:
        on_host: whether the device is the host: step counters then count as its memory. Default False.

    Attributes:
        rows: its operations.
        temporaries: the memory that they take and free.
        unscaling: how many rows come before gradients are clipped: those that unscale them for fp16.
    """

    def __init__(self, *, on_host: bool = False) -> None:
        self.on_host = on_host
        self.rows: list[OperationRow] = []
        self.temporaries: list[Temporary] = []
        self.unscaling = 0
        self._waiting: list[Temporary] = []

    def add(self, name: str, parameter: Parameter, read: int, *, kind: str = "elementwise") -> None:
        """Adds an operation that reads a parameter so many times, and writes it."""
        size = parameter.size_bytes
        values = OperationValues(bytes_read=read * size, bytes_written=size, kernels=1)
        self.rows.append(OperationRow(name, KINDS.index(kind), parameter.dtype, values))

    def write(self, update: RecordedUpdate, parameters: Sequence[Parameter]) -> None:
        """Adds the rows of a recorded update of these parameters."""
        forms = {p: form_of(update.forms, p.shape) for p in set(parameters)}
        for group in _groups(update, parameters, forms):
            self._write_group(update, group, forms)

    def end(self) -> None:
        """The optimizer's step returns, which frees what its variables hold. A loss scaler keeps its own until it rescales."""
        for temporary in self._waiting:
            temporary.died = len(self.rows) - 1
        self._waiting = [t for t in self._waiting if any(form == "rescale" for form, _ in t.until)]

    def _write_group(self, update: RecordedUpdate, group: Sequence[Parameter], forms: dict[Parameter, str]) -> None:
        """The rows of parameters that are updated together."""
        first = update.forms[forms[group[0]]]
        evaluated = [evaluate(update.forms[forms[p]], forms[p], p.shape) for p in group]
        starts: list[tuple[int, int]] = []  # of each row of the template: its position, and how far apart parameters have it
        for segment in first.segments:
            begin, length = len(self.rows), segment.end - segment.start
            stride = 0 if segment.once else length
            starts += [(begin + index, stride) for index in range(length)]
            if not segment.once:
                for numbers in evaluated:
                    self.rows += numbers.rows[segment.start : segment.end]
                continue
            counts = Counter(evaluated)
            self.rows += [_row_of_all(first.rows[row], row, counts) for row in range(segment.start, segment.end)]
        last = len(group) - 1
        for form in dict.fromkeys(forms[p] for p in group):
            self._free(form, starts, last)
        for turn, (parameter, numbers) in enumerate(zip(group, evaluated, strict=True)):
            template = update.forms[forms[parameter]]
            for recorded, size in zip(template.temporaries, numbers.temporaries, strict=True):
                if recorded.shared and turn:
                    continue
                start, stride = starts[recorded.born]
                temporary = Temporary(size, start + stride * turn, until=recorded.until)
                if recorded.died is not None:
                    same = first.segments and _same_loop(template, recorded.born, recorded.died)
                    temporary.died = starts[recorded.died][0] + starts[recorded.died][1] * (turn if same else last)
                else:
                    self._waiting.append(temporary)
                self.temporaries.append(temporary)

    def _free(self, form: str, starts: list[tuple[int, int]], last: int) -> None:
        """Ends the temporaries that variables held until parameters of this form came."""
        kept = []
        for temporary in self._waiting:
            row = dict(temporary.until).get(form)
            if row is None:
                kept.append(temporary)
            else:
                temporary.died = starts[row][0] + starts[row][1] * last
        self._waiting = kept


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A template at one parameter.

    Attributes:
        rows: its operations.
        many: of each row, the tensors and chunks that it goes over.
        temporaries: bytes of its temporaries.
        state: bytes of its state.
    """

    rows: tuple[OperationRow, ...]
    many: tuple[tuple[int, int], ...]
    temporaries: tuple[int, ...]
    state: tuple[int, ...]


@lru_cache(maxsize=4096)
def evaluate(template: UpdateTemplate, form: str, shape: tuple[int, ...]) -> Evaluated:
    """The template at a parameter of this shape, alone."""
    sizes = sizes_of(form, shape)
    many = tuple(
        tensors_and_chunks([*(value(linear, sizes) for linear in row.updated), *[1] * row.shared_tensors])
        for row in template.rows
    )
    numbers = [[(column, value(linear, sizes)) for column, linear in row.values] for row in template.rows]
    return Evaluated(
        tuple(_operation(row, columns, of) for row, columns, of in zip(template.rows, numbers, many, strict=True)),
        many,
        tuple(value(temporary.size_bytes, sizes) for temporary in template.temporaries),
        tuple(value(linear, sizes) for linear in template.state),
    )


def _row_of_all(row: RowTemplate, index: int, counts: Counter[Evaluated]) -> OperationRow:
    """A row that runs once for all parameters."""
    totals = [(column, sum(e.rows[index].values[column] * n for e, n in counts.items())) for column, _ in row.values]
    shared = dict(row.shared)
    alone = sum(counts.values()) - 1  # each parameter alone has the shared part
    tensors, chunks = (sum(e.many[index][i] * n for e, n in counts.items()) - row.shared_tensors * alone for i in (0, 1))
    return _operation(row, [(column, total - shared.get(column, 0) * alone) for column, total in totals], (tensors, chunks))


def _operation(row: RowTemplate, numbers: Sequence[tuple[int, int]], many: tuple[int, int]) -> OperationRow:
    values = [0] * len(COLUMNS)
    for column, number in numbers:
        values[column] = number
    if row.kind == _OVER_MANY:
        values[_KERNELS] = launches_of(*many)
    result = OperationValues(*values)
    if row.kind == _PRODUCT:
        result = result._replace(flops=2 * result.batch * result.m * result.n * result.k)
    return OperationRow(row.name, row.kind, row.dtype, result)


def _groups(update: RecordedUpdate, parameters: Sequence[Parameter], forms: dict[Parameter, str]) -> list[list[Parameter]]:
    """The parameters that are updated together: those whose templates run the same kernels over many tensors."""
    if not update.together:
        return [[parameter] for parameter in parameters]
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    for parameter in parameters:
        template = update.forms[forms[parameter]]
        groups.setdefault(template.segments, []).append(parameter)
    return list(groups.values())


def _same_loop(template: UpdateTemplate, born: int, died: int) -> bool:
    return any(not s.once and s.start <= born < s.end and s.start <= died < s.end for s in template.segments)
