"""Plan files in TOML, for `gpuwise train --plan`. Reading gives an equal plan or raises one FileFormatError."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import tomli_w

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError, InputError
from gpuwise.notes import Note
from gpuwise.plain_files import parse_toml, read_regular, reason_of
from gpuwise.plan.types import Plan
from gpuwise.strategy import HostSettings

FORMAT = "gpuwise-plan"
VERSION = 1
LARGEST_BYTES = 8 * 2**20  # a plan is a few kB
_END = {"of": FORMAT}  # the last table: without it the file was cut short, even if the rest parses
# Names of fields in files, if they differ: files of older versions have sentences there.
_ON_DISK = {"reason_notes": "reasons", "assumption_notes": "assumptions", "warning_notes": "warnings"}
_HEADER = "# A plan made by gpuwise. `gpuwise train --plan` runs it.\n\n"


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a temporary file, syncs and renames it, so that the file is complete or unchanged. Raises InputError."""
    text = plan_text(plan)
    try:
        with written_whole(path) as file:
            file.write(text.encode(errors="replace"))  # a file name may contain bytes that are no text
    except OSError as error:
        raise InputError(
            f"cannot write the plan to {path}: {error.strerror or error}.",
            ["name a file in a folder that exists and can be written"],
        ) from None


def plan_text(plan: Plan) -> str:
    """The text of a plan's file."""
    tables = {name: to_plain(value) for name, value in _items(plan).items() if value is not None}
    tables["strategy"] = to_plain({**_items(plan.strategy), **_items(plan.host)})  # one table of the file
    del tables["host"]
    return _HEADER + tomli_w.dumps({"format": FORMAT, "version": VERSION, **tables, "end": _END})


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan file. Raises FileFormatError if it is absent, damaged, foreign, newer or wrongly typed."""
    try:
        data = parse_toml(read_regular(path, limit_bytes=LARGEST_BYTES).decode())
    except FileNotFoundError:
        raise FileFormatError(f"there is no plan file {path}.", ["make one: gpuwise plan JOB -o plan.toml"]) from None
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} is not a gpuwise plan, or is damaged ({reason_of(error)}).",
            ["plan again with -o", "check that the copy is complete"],
        ) from None
    return from_plain(data, name=str(path))


def from_plain(data: Mapping[str, object], *, name: str = "the plan") -> Plan:
    """A Plan from the dictionary of a plan file. Raises FileFormatError naming the wrong key."""
    data = dict(data)
    if data.pop("format", None) != FORMAT:
        raise FileFormatError(f"{name} is not a gpuwise plan.", ["make one: gpuwise plan JOB -o plan.toml"])
    version = data.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise FileFormatError(
            f"{name} is a plan of version {version}; this gpuwise reads {VERSION}.", ["plan again with -o", "upgrade gpuwise"]
        )
    if data.pop("end", None) != _END:
        raise FileFormatError(
            f"{name} is cut short: its last table, [end], is not there.",
            ["plan again with -o", "check that the copy is complete"],
        )
    host: dict[str, object] = {}
    if isinstance(strategy := data.get("strategy"), dict):
        names = {f.name for f in fields(HostSettings)}
        host = {key: value for key, value in strategy.items() if key in names}
        data["strategy"] = {key: value for key, value in strategy.items() if key not in names}
    try:
        if "host" in data:  # a field of Plan that the file keeps in the strategy's table
            raise _Wrong("unknown key host.")
        plan: Plan = replace(_build(Plan, data, ""), host=_build(HostSettings, host, "strategy"))
    except (_Wrong, InputError) as error:
        raise FileFormatError(f"{name}: the plan is damaged: {error.args[0]}", ["plan again with -o"]) from None
    return plan


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """A wrong value, with its key and the reason."""


def to_plain(value: object) -> object:
    """Converts dataclasses, tuples and mappings to dictionaries and lists, without None values (TOML has no null)."""
    if is_dataclass(value) and not isinstance(value, type):
        value = _items(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def _items(value: object) -> dict[str, object]:
    """The fields of a dataclass by their names in files."""
    assert is_dataclass(value)
    return {_ON_DISK.get(f.name, f.name): getattr(value, f.name) for f in fields(value)}


def _build(kind: Any, value: object, where: str) -> Any:
    """Converts `value` to `kind`: a dataclass, tuple, mapping, union with None, or plain type. The inverse of to_plain."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return value
    if origin in (Union, types.UnionType):
        return _build(next(a for a in arguments if a is not type(None)), value, where)
    if kind is Note:
        try:
            return Note.from_dict(value)
        except ValueError as error:
            raise _Wrong(f"{where}: {error}.") from None
    if is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin is tuple:
        return _build_tuple(arguments, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _Wrong(f"{where} must be a table.")
        return {key: _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise _Wrong(f"{where} must be finite.")
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _Wrong(f"{where} must be {kind.__name__}, got {value!r:.40}.")
    return value


def _build_dataclass(kind: Any, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _Wrong(f"{where or 'it'} must be a table.")
    hints, known_fields = get_type_hints(kind), {_ON_DISK.get(f.name, f.name): f for f in fields(kind)}
    if unknown := sorted(set(value) - set(known_fields)):
        raise _Wrong(f"unknown key {where}{'.' if where else ''}{unknown[0]}.")
    arguments = {}
    for name, f in known_fields.items():
        path = f"{where}.{name}" if where else name
        if name in value:
            arguments[f.name] = _build(hints[f.name], value[name], path)
        elif f.default is MISSING and f.default_factory is MISSING:
            if type(None) not in get_args(hints[f.name]):
                raise _Wrong(f"{path} is missing.")
            arguments[f.name] = None
    return kind(**arguments)


def _build_tuple(arguments: tuple[object, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _Wrong(f"{where} must be a list.")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(arguments) != len(value):
        raise _Wrong(f"{where} must hold {len(arguments)} values.")
    return tuple(_build(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(arguments, value, strict=True)))
