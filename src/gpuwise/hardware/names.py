"""Chips by what people type: ids, shorter forms, and DEVICE texts such as h100-sxm:8x4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpuwise.errors import InputError, UnknownNameError, unknown_name
from gpuwise.hardware.types import Chip

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_COUNT = re.compile(r"(\d{1,6})(?:x(\d{1,6}))?", re.ASCII)
_NOT_NAMING = {"nvidia", "amd", "intel", "apple", "google", "aws", "geforce", "tesla", "gpu"}
_SERIES = _NOT_NAMING | {"rtx", "gtx", "rx", "radeon", "arc", "ryzen", "core"}  # people leave these out: "4080"
_CORES_OF_APPLE = re.compile(r"\d+p\+\d+e\+(\d+)gpu")  # llamafile writes a Mac's GPU as "Apple M1 Max 8P+2E+24GPU"


def valid_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def words(text: str) -> list[str]:
    """Lower-case letters-and-digits parts of a name; "8480+" is "8480plus"."""
    return re.findall(r"[a-z0-9.]+", text.lower().replace("+", "plus"))


def find_chip(text: str, chips: Mapping[str, Chip]) -> Chip:
    """The chip a text names: its id, or a form whose words occur in one id only.

    Words match whole first ("a100-80gb-sxm" from "sxm-a100-80gb"), then as beginnings ("xeon-8480"), then against the
    full name. Of several chips the one whose id has no other naming words is meant: "4080" is no rtx-4080-super.
    A leading "cpu-" is accepted. Raises UnknownNameError, with the candidates when ambiguous.
    """
    name = _CORES_OF_APPLE.sub(r"\1-core", text.strip().lower())
    if name in chips:
        return chips[name]
    parts = words(name)
    pool = dict(chips)
    if len(parts) > 1 and parts[0] == "cpu":
        parts = parts[1:]
        pool = {id_: chip for id_, chip in chips.items() if chip.kind == "cpu"}
        if "-".join(parts) in pool:
            return pool["-".join(parts)]
    parts = [word for word in parts if word not in _NOT_NAMING] or parts
    for match in (_whole, _beginning, _in_name):
        ids = [id_ for id_, chip in pool.items() if parts and all(match(word, chip) for word in parts)]
        exact = [id_ for id_ in ids if _naming(words(id_)) == _naming(parts)]
        if len(ids) == 1 or len(exact) == 1:
            return pool[(exact or ids)[0]]
        if ids:
            raise UnknownNameError(f"{text!r} is ambiguous.", [f"one of: {', '.join(ids)}"])
    raise unknown_name("chip", text, list(chips), listing="gpuwise chips")


def _naming(parts: Iterable[str]) -> set[str]:
    """The words that tell a chip from its siblings of other memory sizes and of other series."""
    return {word for word in parts if word not in _SERIES and not re.fullmatch(r"\d+gb", word)}


def _whole(word: str, chip: Chip) -> bool:
    return word in words(chip.id)


def _beginning(word: str, chip: Chip) -> bool:
    return any(token == word or (len(word) >= 3 and token.startswith(word)) for token in words(chip.id))


def _in_name(word: str, chip: Chip) -> bool:
    return word in words(chip.name) or word in words(chip.id)


def split_device(text: str) -> tuple[str, int | None, int]:
    """'h100-sxm:8x4' -> ('h100-sxm', 8, 4); the count is None when not given. Raises InputError."""
    ways = ["write a device like rtx-4090, h100-80gb-sxm:8 or h100-80gb-sxm:8x4 (4 machines of 8)"]
    if not isinstance(text, str):
        raise InputError(f"a device is a text, got {type(text).__name__} {text!r}.", ways)
    name, colon, counts = text.strip().partition(":")
    if not name:
        raise InputError(f"the device {text!r} names no chip.", ways)
    if not colon:
        return name, None, 1
    match = _COUNT.fullmatch(counts)
    if not match or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise InputError(f"cannot read the count {counts!r} of device {text!r}.", ways)
    return name, int(match[1]), int(match[2] or 1)
