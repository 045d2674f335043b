"""The file of recorded updates.

`gpuwise record updates` makes it (gpuwise.tracing.update_templates): it steps the optimizers of PyTorch and torchao over
made-up parameters.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

from gpuwise.errors import FileFormatError, UnsupportedError
from gpuwise.plain_files import reason_of
from gpuwise.trace.tables import COLUMNS, KINDS
from gpuwise.trace.update.templates import Linear, RecordedUpdate, RowTemplate, Segment, TemporaryTemplate, UpdateTemplate

DATA = Path(__file__).parent / "data" / "updates.json.gz"
FORMAT, VERSION = "gpuwise-updates", 2
_KEY = "optimizer", "kernels", "scaled", "clipped", "part"
_COLUMN = {name: index for index, name in enumerate(COLUMNS)}


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
    """The recorded updates of a file; each is made where it is first used.

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
                (*(item[name] for name in _KEY), of): (item["together"], forms)
                for item in data["updates"]
                for of, forms in item["of"].items()
            }
        except (OSError, EOFError, zlib.error, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} is damaged ({reason_of(error)}).", ["gpuwise record updates"]) from None
        self._by_index: dict[int, UpdateTemplate] = {}

    def __iter__(self) -> Iterator[RecordedUpdate]:
        for optimizer, kernels, scaled, clipped, part, of in self._items:
            target, dtype = of.split()
            yield self.update(optimizer, kernels, dtype, on_host=target == "cpu", scaled=scaled, clipped=clipped, part=part)

    @cache  # noqa: B019
    def update(
        self,
        optimizer: str,
        kernels: str,
        dtype: str,
        *,
        on_host: bool,
        scaled: bool = False,
        clipped: bool = False,
        part: str = "step",
    ) -> RecordedUpdate:
        """A part of an optimizer's update.

        Arguments:
            optimizer, kernels: as in Strategy.
            dtype: of the parameters.
            on_host: whether they are updated by a CPU.
            scaled: whether gradients are scaled for fp16. Default False.
            clipped: whether scaled gradients are unscaled and clipped before the optimizer steps. Default False.
            part: "step" (the default); of scaled gradients "unscale" before it and "rescale" behind it; "zero", which sets
                gradients that are kept to zero.

        Raises UnsupportedError for one that is not recorded.
        """
        of = f"{'cpu' if on_host else 'accelerator'} {dtype}"
        item = self._items.get((optimizer, kernels, scaled, clipped, part, of))
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
