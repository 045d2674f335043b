"""A catalog file's text to tables, with errors that name file and line."""

from __future__ import annotations

import re
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.hardware.toml_cache import cached_tables
from gpuwise.plain_files import parse_toml, read_regular

MAX_BYTES = 8 * 2**20  # a catalog file is a few hundred kB; more is a mistake
_HEADER = re.compile(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?")


def read_toml(path: Path, *, entry: str | None = None) -> tuple[dict[str, object], str]:
    """The tables of a TOML file and its text. Raises FileFormatError for anything that is no readable TOML.

    Arguments:
        entry: the name under which the tables are kept for the next process, None for a file that is always parsed.
    """
    try:
        data = read_regular(path, limit_bytes=MAX_BYTES)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror or error}).", ["correct it, or move it away"]) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise bad_file(path, data[: error.start].count(b"\n") + 1, "not UTF-8 text") from None
    try:
        return parse_toml(text) if entry is None else cached_tables(entry, data), text
    except ValueError as error:
        match = re.search(r"line (\d+)", str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        raise bad_file(path, line, f"not valid TOML: {error}") from None


def bad_file(path: Path | str, line: int, what: str) -> FileFormatError:
    return FileFormatError(f"{path}, line {line}: {what}.", ["correct that line, or move the file away"])


def find_line(text: str, section: str, name: str | int, key: str | None = None) -> int:
    """The line of a row's header, or of one of its keys; the nearest that can be found, else 1.

    Arguments:
        section: "chip", "link" or "offer".
        name: the id in `[section.id]`, or the place (from 0) of an `[[offer]]`.
    """
    inside, index, header_line = False, -1, 1
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header and "=" not in line.split("]")[0]:
            title = header[2].replace('"', "").replace("'", "").replace(" ", "")
            index += header[1] == "[[" and title == section
            inside = title == f"{section}.{name}" or (header[1] == "[[" and title == section and index == name)
            header_line = number if inside else header_line
        elif inside and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    if header_line == 1:  # not written as a table of its own: look for the name anywhere
        header_line = next((n for n, line in enumerate(text.splitlines(), 1) if str(name) in line), 1)
    return header_line
