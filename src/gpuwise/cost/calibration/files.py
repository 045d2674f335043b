"""Reads calibration files: TOML, one for each calibrated chip, architecture, generation or family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable

from gpuwise.cost.calibration.entry import WAYS_OUT, CalibrationEntry, entry_from
from gpuwise.errors import FileFormatError
from gpuwise.hardware.toml_cache import cached_tables
from gpuwise.plain_files import parse_toml

SCHEMA = 1
STEPS = "steps.toml"  # in the same folder: gpuwise.cost.calibration.steps
LEVELS = ("chip", "architecture", "generation", "family")  # from the most specific to the least
PROVENANCE = {
    "machine": "measured here",
    "chip": "calibrated on this chip",
    "architecture": "transferred from its architecture",
    "generation": "transferred from its architecture",
    "family": "datasheet only",
}


@dataclass(frozen=True)
class CalibrationFile:
    """One file of figures.

    Attributes:
        name: name of the file, for errors.
        level: level of the file, a key of PROVENANCE.
        of: the chip id, architecture, generation or family.
        entries: by key (`gemm.bf16`, `norm`).
        scale: factors on the time of classes of kernels, by key, applied to the entry of the level above.
    """

    name: str
    level: str
    of: str
    entries: Mapping[str, CalibrationEntry]
    scale: Mapping[str, float]


class _ShippedEntries(Mapping[str, CalibrationEntry]):
    """The entries of a shipped file, each read when it is first wanted: a job runs a third of all classes of kernels.

    Arguments:
        tables: of the entries, by key.
        name: name of the file, for errors.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, object]], name: str):
        self._tables, self._name = tables, name
        self._entries: dict[str, CalibrationEntry] = {}

    def __getitem__(self, key: str) -> CalibrationEntry:
        if key not in self._entries:
            self._entries[key] = entry_from(key, self._tables[key], self._name)
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def parse(text: str, name: str) -> CalibrationFile:
    """A calibration file from its text. Raises FileFormatError naming the file."""
    return file_of(tables(text.encode(), name), name)


def _toml(text: bytes) -> dict[str, object]:
    return parse_toml(text.decode())


def tables(text: bytes, name: str, read: Callable[[bytes], dict[str, object]] = _toml) -> dict[str, object]:
    """The tables of a file of this schema. Raises FileFormatError naming the file."""
    try:
        data = read(text)
    except ValueError as error:
        raise FileFormatError(f"{name} is not valid TOML: {error}.", WAYS_OUT) from None
    if data.get("schema") != SCHEMA:
        raise FileFormatError(f"{name}: schema is {data.get('schema')!r}, this gpuwise reads {SCHEMA}.", WAYS_OUT)
    return data


def _all_entries(tables: Mapping[str, Mapping[str, object]], name: str) -> dict[str, CalibrationEntry]:
    return {key: entry_from(key, value, name) for key, value in tables.items()}


def file_of(
    data: dict[str, object],
    name: str,
    entries_of: Callable[[Mapping[str, Mapping[str, object]], str], Mapping[str, CalibrationEntry]] = _all_entries,
) -> CalibrationFile:
    """The calibration file of these tables. Raises FileFormatError naming it.

    Arguments:
        entries_of: reads the tables of the entries.
    """
    level, of, scale, entries = data.get("level"), data.get("of"), data.get("scale", {}), data.get("entry", {})
    if not isinstance(level, str) or level not in PROVENANCE or not isinstance(of, str):
        raise FileFormatError(f"{name}: needs a level ({', '.join(PROVENANCE)}) and what it is `of`.", WAYS_OUT)
    if not isinstance(scale, dict) or not all(_factor(value) for value in scale.values()):
        raise FileFormatError(f"{name}: [scale] holds factors between 0 and 100.", WAYS_OUT)
    unknown = set(data) - {"schema", "level", "of", "scale", "entry"}
    if unknown or not isinstance(entries, dict):
        raise FileFormatError(
            f"{name}: holds [scale] and [entry] tables, not {', '.join(sorted(unknown or {'entry'}))}.", WAYS_OUT
        )
    return CalibrationFile(name, level, of, entries_of(entries, name), scale)


def _factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 100


def file_name(level: str, of: str) -> str:
    """The file name of a chip, architecture, generation or family."""
    return f"{level}-{of.lower().replace(' ', '-')}.toml"


@cache
def _shipped_names() -> frozenset[str]:
    return frozenset(path.name for path in _folder().iterdir() if path.name.endswith(".toml") and path.name != STEPS)


def _folder() -> Traversable:
    return files("gpuwise.cost").joinpath("data/calibration")


@cache
def _shipped_file(name: str) -> CalibrationFile:
    data = tables(_folder().joinpath(name).read_bytes(), name, partial(cached_tables, f"calibration-{name}"))
    return file_of(data, name, _ShippedEntries)


def shipped_file(level: str, of: str) -> CalibrationFile | None:
    """The shipped file of one chip, architecture, generation or family; None without one."""
    name = file_name(level, of)
    return _shipped_file(name) if name in _shipped_names() else None


def shipped() -> Mapping[tuple[str, str], CalibrationFile]:
    """All shipped files, by (level, of)."""
    return {(file.level, file.of): file for file in map(_shipped_file, sorted(_shipped_names()))}
