"""What a row of a target's table is: how a peer writes one field of a plan, and what its keys mean when they are read back.

A row gives keys for a value (`write`) and a value for keys (`read`), so that one table serves both directions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gpuwise.export.values import Value, Values, defaults
from gpuwise.json_types import Json

Keys: TypeAlias = Mapping[str, Json]  # a peer's keys as dotted paths
EXACTLY, APPROXIMATELY, IN_SCRIPT = STATUSES = ("exactly", "approximately", "in your script")


@dataclass(frozen=True)
class Cell:
    """How a peer writes a value.

    Attributes:
        keys: its keys, as dotted paths, with their values.
        differs: how the peer differs, in a sentence; "" where it does not.
        as_if: fields as a forecast of the peer has them, where the row's value does not fix them.
        script: what the user's own script sets, because the peer's file has no key for it; "" for nothing.
    """

    keys: Keys = field(default_factory=dict)
    differs: str = ""
    as_if: Values = field(default_factory=dict)
    script: str = ""

    @property
    def status(self) -> str:
        """Of STATUSES."""
        return IN_SCRIPT if self.script else APPROXIMATELY if self.differs else EXACTLY


@dataclass(frozen=True)
class Refused:
    """A value that a peer cannot have, with the reason and up to two ways out."""

    reason: str
    ways_out: Sequence[str] = ()


AnyCell: TypeAlias = Cell | Refused


@dataclass(frozen=True)
class Reading:
    """What a row reads from a peer's keys.

    Attributes:
        values: fields of a plan, or `layout`.
        keys: the keys that they come from.
        differs: how the peer differs from what is forecast; "" where it does not.
    """

    values: Mapping[str, Value]
    keys: tuple[str, ...]
    differs: str = ""


def same(left: Json, right: Json) -> bool:
    """Whether two values of a file mean the same: case of words apart, and true apart from "true"."""
    if isinstance(left, str) or isinstance(right, str):
        return str(left).casefold() == str(right).casefold()
    return left == right and isinstance(left, bool) == isinstance(right, bool)


class Row(ABC):
    """How a peer writes one or a few fields."""

    fields: tuple[str, ...]

    @abstractmethod
    def write(self, values: Values) -> AnyCell:
        """The peer's keys for these fields of a plan."""

    @abstractmethod
    def read(self, keys: Keys, standard: Keys) -> Reading | None:
        """The fields for a peer's keys; None where the keys leave them open. standard: the peer's values where a key is absent.

        Raises InputError for values that cannot be forecast.
        """

    @abstractmethod
    def cases(self) -> list[tuple[str, AnyCell]]:
        """What a table of the documentation shows: a value in words, and its translation."""

    @abstractmethod
    def own_keys(self) -> set[str]:
        """Every key that the row writes or reads."""


def plain(name: str) -> Value:
    """A field's default."""
    return defaults()[name]
