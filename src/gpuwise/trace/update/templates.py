"""Templates of updates: what an optimizer does with a parameter, its numbers as linear functions of the parameter's sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

# torchao/optim/adam.py: values that a scale stands for. Smaller tensors, and those that blocks do not divide, keep plain state.
BLOCKS = {"blocks of 256": 256, "blocks of 128": 128}
BLOCKS_FROM = 4096
Linear = tuple[int, ...]  # coefficients of the sizes of a parameter


def sizes_of(form: str, shape: tuple[int, ...]) -> Linear:
    """The sizes of a parameter of this form in which the numbers of its update are linear. The first is 1."""
    elements = prod(shape)
    if form == "matrix":
        rows, columns = shape
        return 1, elements, rows, columns, min(shape), min(shape) ** 2
    if form == "stack":
        *batch, rows, columns = shape
        return 1, elements, prod(batch) * rows, prod(batch) * columns, prod(batch), rows, columns
    return 1, elements // BLOCKS.get(form, 1)


def form_of(forms: Collection[str], shape: tuple[int, ...]) -> str:
    """Which of the forms in which an optimizer was recorded a parameter has; else the first of them."""
    elements = prod(shape)
    mine = {form for form, block in BLOCKS.items() if elements >= BLOCKS_FROM and elements % block == 0}
    if len(shape) > 1:
        mine.add("matrix" if len(shape) == 2 else "stack")
    return next((form for form in forms if form in mine), next(iter(forms)))


def value(linear: Linear, sizes: Linear) -> int:
    """The number at a parameter of these sizes."""
    return sum(factor * size for factor, size in zip(linear, sizes, strict=True))


@dataclass(frozen=True)
class RowTemplate:
    """One operation of an update.

    Attributes:
        name, kind, dtype: as of an OperationRow.
        values: its numbers by column; those left out are 0. Those of a product follow from its dimensions, and the launches of
            a kernel over many tensors from the tensors it updates.
        shared: what a row of several parameters has of each column beside the sum of theirs.
        updated: elements of the tensors that a kernel over many tensors updates.
        shared_tensors: how many tensors of one element it updates beside, however many parameters there are.
    """

    name: str
    kind: int
    dtype: str
    values: tuple[tuple[int, Linear], ...]
    shared: tuple[tuple[int, int], ...] = ()
    updated: tuple[Linear, ...] = ()
    shared_tensors: int = 0


@dataclass(frozen=True)
class Segment:
    """Consecutive rows, from `start` to before `end`: a loop over the parameters, or run once for all of them."""

    start: int
    end: int
    once: bool


@dataclass(frozen=True)
class TemporaryTemplate:
    """Memory that an update takes and frees.

    Attributes:
        size_bytes: bytes of the storage.
        born: the row that allocates it.
        died: the last row at which it is alive; None: it outlives these rows.
        until: then the row of the next parameters of each form at which it is freed; of forms left out it outlives the rows.
        shared: it is one for all parameters of a step.
    """

    size_bytes: Linear
    born: int
    died: int | None
    until: tuple[tuple[str, int], ...] = ()
    shared: bool = False


@dataclass(frozen=True, eq=False)
class UpdateTemplate:
    """What an optimizer does with parameters of one form.

    Attributes:
        rows: its operations.
        segments: which of them run for each parameter, and which once.
        temporaries: the memory it takes and frees.
        state: bytes of each tensor of its state on the device.
    """

    rows: tuple[RowTemplate, ...]
    segments: tuple[Segment, ...]
    temporaries: tuple[TemporaryTemplate, ...]
    state: tuple[Linear, ...]


@dataclass(frozen=True)
class RecordedUpdate:
    """A part of an optimizer's update.

    Attributes:
        together: whether parameters are updated together, else one after another.
        forms: the template of each form of parameter.
    """

    together: bool
    forms: dict[str, UpdateTemplate]
