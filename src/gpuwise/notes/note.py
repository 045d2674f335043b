"""Note: something a result tells its user beside its numbers. An assumption, a reason, a warning, a rejection or a remark.

A kind of note is a function that makes its sentence from keyword arguments; `kind_of_note` turns it into one that returns a
Note. The function is the one place where that sentence is written. What reads notes goes by their kind, flag and figures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import ParamSpec, TypeGuard

from gpuwise.json_types import Json

Figure = str | int | float | bool
P = ParamSpec("P")

OLDER = "older"  # the kind of a note of which a file of an older version holds the sentence alone
STATED = "stated-by-the-job"  # the kind of an assumption that a user wrote into a Job as a sentence


def _is_figure(value: object) -> TypeGuard[Figure]:
    """Whether JSON and files can hold it: a text, or a number that is finite as a float."""
    try:
        return isinstance(value, str | bool) or (isinstance(value, int | float) and math.isfinite(value))
    except OverflowError:  # a whole number that no float holds
        return False


@dataclass(frozen=True)
class Note:
    """One note.

    Attributes:
        kind: an identifier, a key of KINDS: "assumed-sequence-length".
        text: the sentence, as reports print it.
        figures: what the sentence is made of, by name, in the units of the names.
        flag: the command-line flag that changes it, "--seq-len"; None where none does.
    """

    kind: str
    text: str
    figures: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    flag: str | None = None

    def __str__(self) -> str:
        return self.text

    def with_detail(self, detail: str) -> Note:
        """The same with a detail at the end: "past the deadline: 18 days"."""
        if not detail:
            return self
        return self._with(f"{self.text}: {detail}", detail=detail)

    def that_does_not_fit(self) -> Note:
        """The same said of a device whose memory is too small."""
        return self._with(f"does not fit: {self.text}", fits=False)

    def with_change(self, change: str) -> Note:
        """The same with what would fit, as words and as a command."""
        return self._with(f"{self.text}; it would with {change}", change=change)

    def of_devices(self, names: Iterable[str]) -> Note:
        """The same said of some of several devices: "h100-sxm: price of ..."."""
        devices = ", ".join(names)
        return self._with(f"{devices}: {self.text}", devices=devices)

    def _with(self, text: str, **figures: Figure) -> Note:
        return replace(self, text=text, figures={**self.figures, **figures})

    def to_dict(self) -> dict[str, Json]:
        """As JSON and files have it."""
        return {"kind": self.kind, "text": self.text, "figures": dict(self.figures), "flag": self.flag}

    @classmethod
    def from_dict(cls, data: object) -> Note:
        """What to_dict returned, or the sentence alone of an older file. Raises ValueError for anything else."""
        if isinstance(data, str):
            return _of_older_file(data)
        if not isinstance(data, Mapping) or not set(data) <= {"kind", "text", "figures", "flag"}:
            raise ValueError("a note is a table of kind, text, figures and flag")
        kind, text, figures, flag = (data.get(name) for name in ("kind", "text", "figures", "flag"))
        if not isinstance(kind, str) or not isinstance(text, str) or not isinstance(flag, str | None):
            raise ValueError("the kind, text and flag of a note are texts")
        figures = {} if figures is None else figures
        if not isinstance(figures, Mapping) or not all(map(_is_figure, figures.values())):
            raise ValueError("the figures of a note are finite numbers and texts")
        return cls(kind, text, {str(name): value for name, value in figures.items()}, flag)


@dataclass(frozen=True)
class KindOfNote:
    """What all notes of one kind share.

    Attributes:
        name: the kind.
        meaning: what such a note says, one line.
        flag: the command-line flag that changes it; None where none does.
        figures: their names.
        make: makes one from its figures.
    """

    name: str
    meaning: str
    flag: str | None
    figures: tuple[str, ...]
    make: Callable[..., Note]


KINDS: dict[str, KindOfNote] = {}


def kind_of_note(*, flag: str | None = None) -> Callable[[Callable[P, str]], Callable[P, Note]]:
    """A decorator: a function from figures, all of them keyword arguments, to a sentence becomes one that makes notes.

    The kind is the function's name with dashes, its meaning the first line of the docstring. The note leaves out figures that
    are None or not finite.
    """

    def declare(sentence: Callable[P, str]) -> Callable[P, Note]:
        name = sentence.__name__.replace("_", "-")

        @wraps(sentence)
        def make(*args: P.args, **figures: P.kwargs) -> Note:
            kept = {key: value for key, value in figures.items() if _is_figure(value)}
            return Note(name, sentence(*args, **figures), kept, flag)

        assert name not in KINDS
        names = tuple(name for name in sentence.__annotations__ if name != "return")
        KINDS[name] = KindOfNote(name, (sentence.__doc__ or "").partition("\n")[0], flag, names, make)
        return make

    return declare


def all_kinds() -> Mapping[str, KindOfNote]:
    """KINDS once every module of this package is loaded."""
    from importlib import import_module
    from pkgutil import iter_modules

    for module in iter_modules([os.path.dirname(__file__)]):
        import_module(f"gpuwise.notes.{module.name}")
    return KINDS


def _of_older_file(text: str) -> Note:
    """A sentence without figures has its kind again; of others the sentence and the flag are known."""
    return next((note for note in _without_figures() if note.text == text), of_sentence(text, OLDER))


@cache
def _without_figures() -> tuple[Note, ...]:
    kinds = all_kinds().values()
    return tuple(kind.make() for kind in kinds if not kind.figures)


def of_sentence(text: str, kind: str) -> Note:
    """A note of a sentence that was not made here. A flag that the sentence ends in is read: "...; --seq-len changes it"."""
    before, _, ending = text.rpartition("; ")
    flag, _, rest = ending.partition(" ")
    return Note(kind, text, {}, flag if before and flag[:2] == "--" and rest in ("changes it", "changes both") else None)


def sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """What the notes say."""
    return tuple(note.text for note in notes)


def to_dicts(notes: Iterable[Note]) -> list[dict[str, Json]]:
    """Notes as JSON has them."""
    return [note.to_dict() for note in notes]
