"""Files from outside: only regular files are read, and only numbers that 64 bits hold.

Opening a pipe waits until somebody writes to it, and a device may have no end. A whole number in a file may have thousands of
digits, which no float holds and Python may refuse to print.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from collections.abc import Iterator
from typing import BinaryIO

LARGEST_WHOLE = 2**63 - 1  # TOML's own limit, and that of NumPy's columns
MOST_KEY_PARTS = 1_000  # a.b.c on one line: tomllib takes memory and time that grow with their square
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, opened to be read. Never waits. Raises OSError, also for a pipe, a device or a folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a null character in the path
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    try:
        check_regular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def check_regular(descriptor: int, path: str | os.PathLike[str]) -> None:
    """Raises OSError where what was opened at a path is a pipe, a device, a folder or a socket."""
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", os.fspath(path))


def read_regular(path: str | os.PathLike[str], *, limit_bytes: int) -> bytes:
    """The content of a regular file. Raises OSError, also where it is larger than the limit."""
    with open_regular(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is too large: more than {limit_bytes:,} bytes", os.fspath(path))
    return content


def reason_of(error: Exception) -> str:
    """The message of an error; for an OSError, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


def parse_toml(text: str) -> dict[str, object]:
    """The tables of a TOML text.

    Raises ValueError (tomllib.TOMLDecodeError is one) if the text is no TOML, is nested too deeply, or has a whole number
    beyond 64 bits.
    """
    if max((line.count(".") for line in text.splitlines()), default=0) > MOST_KEY_PARTS:
        raise ValueError("a key with too many parts")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check(tables)
    return tables


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text. Raises ValueError like parse_toml, and for NaN and Infinity, which JSON does not have."""
    try:
        data: object = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check(data)
    return data


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check(data: object) -> None:
    """Raises ValueError for a whole number that 64 bits do not hold."""
    for key, value in _leaves(data):
        if isinstance(value, int) and not -LARGEST_WHOLE - 1 <= value <= LARGEST_WHOLE:
            raise ValueError(f"the number of {key or 'the document'} is larger than 64 bits hold")


def _leaves(data: object) -> Iterator[tuple[str, object]]:
    """Every leaf with its path."""
    waiting = [("", data)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(path, item) for item in value]
        else:
            yield path, value
