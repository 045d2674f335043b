"""The kinds of rows: a field with few values, a whole number, what a script sets, what a peer cannot have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from gpuwise.errors import InputError
from gpuwise.export.cells import IN_SCRIPT, AnyCell, Cell, Keys, Reading, Refused, Row, plain, same
from gpuwise.export.values import Value, Values, layout_of, number_of
from gpuwise.json_types import Json


@dataclass(frozen=True)
class ByValue(Row):
    """A field with few values, each with keys of its own.

    Attributes:
        fields: the fields that it covers.
        cells: the translation of each value.
        value: the value among `cells` for a plan's fields; the first field by default.
        also: keys that we never write, with the value they are forecast as, and how they differ.
        target: the field that reading gives, the first by default; "layout" for a layout, "" where `as_if` has all fields.
    """

    fields: tuple[str, ...]
    cells: Mapping[Value, AnyCell]
    value: Callable[[Values], Value] | None = None
    also: Sequence[tuple[Keys, Values, str]] = ()
    target: str | None = None

    def write(self, values: Values) -> AnyCell:
        value = values[self.fields[0]] if self.value is None else self.value(values)
        return self.cells.get(value) or Refused(f"{value} is not a value of its table")

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        names = sorted(self.own_keys())
        if not any(name in keys for name in names) and not any(name in standard for name in names):
            return None
        # A script's part cannot be read: a value that the peer itself has keys for comes first.
        pairs = [(cell, value) for value, cell in self.cells.items() if isinstance(cell, Cell)]
        pairs.sort(key=lambda pair: pair[0].status == IN_SCRIPT)
        options = [(cell.keys, self._values(value, cell), cell.differs) for cell, value in pairs] + [*self.also]
        for cell_keys, values, differs in options:
            if all(same(_at(keys, standard, name), cell_keys.get(name, standard.get(name))) for name in names):
                return Reading(values, tuple(name for name in names if name in keys), differs)
        present = [f"{name} = {keys[name]!r}" for name in names if name in keys]
        if not present:
            return None
        raise InputError(
            f"{', '.join(present)} is nothing that gpuwise forecasts.",
            [f"one of: {'; '.join(_words(option[0]) for option in options if option[0])}"],
        )

    def _values(self, value: Value, cell: Cell) -> Values:
        target = self.fields[0] if self.target is None else self.target
        return {**({target: value} if target else {}), **cell.as_if}

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [(str(value).lower() if isinstance(value, bool) else str(value), cell) for value, cell in self.cells.items()]

    def own_keys(self) -> set[str]:
        written = [cell.keys for cell in self.cells.values() if isinstance(cell, Cell)]
        return {name for cell_keys in (*written, *(keys for keys, _, _ in self.also)) for name in cell_keys}


def _at(keys: Keys, standard: Keys, name: str) -> Json:
    return keys[name] if name in keys else standard.get(name)


def _words(keys: Keys) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in keys.items())


@dataclass(frozen=True)
class Count(Row):
    """A whole number that a key has as it is.

    Attributes:
        field: the field.
        key: the peer's key.
        differs: how the peer differs, in a sentence.
        unset: values of the key that leave the number open, such as -1.
    """

    field: str
    key: str
    differs: str = ""
    unset: tuple[Json, ...] = (None,)

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.field,)

    def write(self, values: Values) -> AnyCell:
        value = values[self.field]
        keys = {} if value is None or value in self.unset else {self.key: value}
        return Cell(keys, differs=self.differs if value != plain(self.field) else "")

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        value = _at(keys, standard, self.key)
        present = (self.key,) if self.key in keys else ()
        if value in self.unset or (not present and self.key not in standard):
            return Reading({}, present)
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, str) and whole.isdecimal() and len(whole) < 19:
            whole = int(whole)
        if not isinstance(whole, int) or isinstance(whole, bool):
            raise InputError(f"{self.key} = {value!r} is not a whole number.", ["write a whole number"])
        return Reading({self.field: whole}, present, self.differs if whole != plain(self.field) else "")

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [("n", Cell({self.key: "n"}, differs=self.differs))]

    def own_keys(self) -> set[str]:
        return {self.key}


@dataclass(frozen=True)
class WholeBatch(Row):
    """The accumulation, which follows from a key with the samples of a whole step (gpuwise.export.settle.batch_of reads it)."""

    key: str
    fields = ("accumulation",)

    def write(self, values: Values) -> AnyCell:
        factors = ("micro_batch", "accumulation", "dp_replicate", "dp_shard")
        return Cell({self.key: prod(number_of(values, name) for name in factors)})

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        return None

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [("n", Cell({self.key: "micro_batch x n x dp_replicate x dp_shard"}))]

    def own_keys(self) -> set[str]:
        return {self.key}


@dataclass(frozen=True)
class Scripted(Row):
    """A field that the peer's file has no key for, and the user's script sets. script: its words, with {value}."""

    field: str
    script: str

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.field,)

    def write(self, values: Values) -> AnyCell:
        value = values[self.field]
        if value == plain(self.field) and self.field != "micro_batch":
            return Cell()
        return Cell(script=self.script.replace("{value}", str(value)))

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        return None

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [("any", Cell(script=self.script.replace("{value}", "n")))]

    def own_keys(self) -> set[str]:
        return set()


@dataclass(frozen=True)
class Never(Row):
    """A field that the peer cannot have but at its default. reason: why, as a sentence that goes on from the field's name."""

    field: str
    reason: str
    ways_out: Sequence[str] = ()

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.field,)

    def write(self, values: Values) -> AnyCell:
        return Cell() if values[self.field] == plain(self.field) else Refused(self.reason, self.ways_out)

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        return None

    def cases(self) -> list[tuple[str, AnyCell]]:
        return [("any but the default", Refused(self.reason, self.ways_out))]

    def own_keys(self) -> set[str]:
        return set()


@dataclass(frozen=True)
class When(Row):
    """A row that is written only where a condition of the plan's fields is met. otherwise: the translation elsewhere."""

    row: Row
    condition: Callable[[Values], bool]
    otherwise: AnyCell = field(default_factory=Cell)

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.row.fields

    def write(self, values: Values) -> AnyCell:
        as_usual = all(values[name] == plain(name) for name in self.fields)
        return self.row.write(values) if self.condition(values) else Cell() if as_usual else self.otherwise

    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        return self.row.read(keys, standard)

    def cases(self) -> list[tuple[str, AnyCell]]:
        other = self.otherwise
        empty = isinstance(other, Cell) and other == Cell()
        return [*self.row.cases(), *([] if empty else [("elsewhere", other)])]

    def own_keys(self) -> set[str]:
        return self.row.own_keys()


def layout_row(
    cells: Mapping[Value, AnyCell],
    *,
    word: Callable[[Values], Value] = layout_of,
    also: Sequence[tuple[Keys, Values, str]] = (),
    more: tuple[str, ...] = (),
) -> ByValue:
    """The row of dp_replicate, dp_shard and shard, and of the fields `more`. cells: by `word`, a layout's by default."""
    return ByValue(("dp_replicate", "dp_shard", "shard", *more), cells, word, also, target="layout")
