"""Recorded updates: what each optimizer does with a parameter, its numbers as linear functions of the parameter's sizes.

`gpuwise record updates` makes the file (gpuwise.tracing.updates): it steps the optimizers of PyTorch and torchao over made-up
parameters.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import NotRequired, TypedDict

from gpuwise.errors import FileFormatError, UnsupportedError
from gpuwise.plain_files import reason_of
from gpuwise.trace.tables import COLUMNS, KINDS

DATA = Path(__file__).parent / "data" / "updates.json.gz"
FORMAT, VERSION = "gpuwise-updates", 1
# torchao/optim/adam.py: values that a scale stands for. Smaller tensors, and those that blocks do not divide, keep plain state.
BLOCKS = {"blocks of 256": 256, "blocks of 128": 128}
BLOCKS_FROM = 4096
_COLUMN = {name: index for index, name in enumerate(COLUMNS)}
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


class RowItem(TypedDict):
    """A RowTemplate in the file."""

    name: str
    kind: str
    dtype: str
    values: dict[str, Linear]
    shared: NotRequired[dict[str, int]]
    updated: NotRequired[list[Linear]]
    shared_tensors: NotRequired[int]


class TemporaryItem(TypedDict):
    """A TemporaryTemplate in the file."""

    size_bytes: Linear
    born: int
    died: int | None
    until: NotRequired[dict[str, int]]
    shared: NotRequired[bool]


class TemplateItem(TypedDict):
    """An UpdateTemplate in the file; its rows are numbers in the table of rows."""

    rows: list[int]
    segments: list[tuple[int, int, bool]]
    temporaries: list[TemporaryItem]
    state: list[Linear]


class RecordedUpdates:
    """The recorded updates of a file; each is made where it is first asked for.

    Raises FileFormatError where the file is damaged or of another version.
    """

    def __init__(self, path: Path):
        try:
            data = json.loads(gzip.decompress(path.read_bytes()))
            if (data["format"], data["version"]) != (FORMAT, VERSION):
                raise ValueError(f"version {data['version']} of {data['format']}")
            self.torch_version: str = data["torch_version"]
            self.torchao_version: str = data["torchao_version"]
            self._rows, self._templates = data["rows"], data["templates"]
            self._items = {
                (item["optimizer"], item["kernels"], item["scaled"], item["part"], of): (item["together"], forms)
                for item in data["updates"]
                for of, forms in item["of"].items()
            }
        except (OSError, EOFError, zlib.error, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} is damaged ({reason_of(error)}).", ["gpuwise record updates"]) from None
        self._by_index: dict[int, UpdateTemplate] = {}

    def __iter__(self) -> Iterator[RecordedUpdate]:
        for optimizer, kernels, scaled, part, of in self._items:
            target, dtype = of.split()
            yield self.update(optimizer, kernels, dtype, on_host=target == "cpu", scaled=scaled, part=part)

    @cache  # noqa: B019
    def update(
        self, optimizer: str, kernels: str, dtype: str, *, on_host: bool, scaled: bool = False, part: str = "step"
    ) -> RecordedUpdate:
        """A part of an optimizer's update.

        Arguments:
            optimizer, kernels: as in Strategy.
            dtype: of the parameters.
            on_host: whether they are updated by a CPU.
            scaled: whether gradients are scaled for fp16. Default False.
            part: "step" (the default); of scaled gradients "unscale" before it and "rescale" behind it; "zero", which sets
                gradients that are kept to zero.

        Raises UnsupportedError for one that is not recorded.
        """
        item = self._items.get((optimizer, kernels, scaled, part, f"{'cpu' if on_host else 'accelerator'} {dtype}"))
        if item is None:
            raise UnsupportedError(
                f"no update of {dtype} parameters by {optimizer} ({kernels}) is recorded.", ["--precision fp32 or amp-bf16"]
            )
        together, forms = item
        return RecordedUpdate(together, {form: self._template(index) for form, index in forms.items()})

    def _template(self, index: int) -> UpdateTemplate:
        if index not in self._by_index:
            self._by_index[index] = _template(self._templates[index], self._rows)
        return self._by_index[index]


@cache
def updates() -> RecordedUpdates:
    """The recorded updates that ship with gpuwise."""
    return RecordedUpdates(DATA)


def _template(item: TemplateItem, rows: list[RowItem]) -> UpdateTemplate:
    return UpdateTemplate(
        rows=tuple(_row(rows[index]) for index in item["rows"]),
        segments=tuple(Segment(*segment) for segment in item["segments"]),
        temporaries=tuple(
            TemporaryTemplate(
                tuple(temporary["size_bytes"]),
                temporary["born"],
                temporary["died"],
                tuple(temporary.get("until", {}).items()),
                temporary.get("shared", False),
            )
            for temporary in item["temporaries"]
        ),
        state=tuple(map(tuple, item["state"])),
    )


def _row(item: RowItem) -> RowTemplate:
    return RowTemplate(
        item["name"],
        KINDS.index(item["kind"]),
        item["dtype"],
        tuple((_COLUMN[name], tuple(linear)) for name, linear in item["values"].items()),
        tuple((_COLUMN[name], number) for name, number in item.get("shared", {}).items()),
        tuple(map(tuple, item.get("updated", ()))),
        item.get("shared_tensors", 0),
    )
