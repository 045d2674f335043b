"""Tables of a user's TOML file, read key by key; every mistake is an error with its line, its key and the nearest name."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwise.errors import FileFormatError, nearest, shown
from gpuwise.hardware.tomlfile import find_line, read_toml


@dataclass(frozen=True)
class UserTable:
    """One table of a file.

    Attributes:
        path: of the file.
        content: of the whole file, to name lines.
        values: keys and values of the table.
        section: "job" for the rows of `[[job]]`; "" for the file's own keys, before any table.
        name: the row of `[[section]]` (from 0), or the id in `[section.id]`.
    """

    path: str
    content: str
    values: Mapping[str, object]
    section: str = ""
    name: str | int = 0

    def fail(self, key: str | None, what: str, *ways: str) -> FileFormatError:
        """The error of a key of this table, or of the whole table."""
        return FileFormatError(f"{self.path}, line {self._line(key)}: {what}.", ways or ("correct that line",))

    def _line(self, key: str | None) -> int:
        if self.section:
            return find_line(self.content, self.section, self.name, key)
        pattern = rf"\s*[\"']?{re.escape(key or '')}[\"']?\s*=|\s*\[+\s*{re.escape(key or '')}\b"
        return next((n for n, line in enumerate(self.content.splitlines(), 1) if re.match(pattern, line)), 1)

    def check_keys(self, valid: Collection[str]) -> None:
        """Raises FileFormatError for a key that is none of these."""
        for key in self.values:
            if key not in valid:
                near = nearest(key, list(valid), most=1)
                ways = [*([f"nearest: {near[0]}"] if near else []), f"one of: {', '.join(valid)}"]
                raise self.fail(key, f"unknown key {key!r}", *ways)

    def number(self, key: str, *, least: float, most: float, above: bool = False) -> float | None:
        """A number from `least` to `most`, None where the key is absent. above: `least` itself is refused."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.fail(key, f"{key} must be a number, got {shown(value)}")
        if not least <= value <= most or (above and value == least):
            raise self.fail(
                key, f"{key} must be {'above' if above else 'from'} {least:,g} and at most {most:,g}, got {value:,g}"
            )
        return float(value)

    def words(self, key: str) -> str | None:
        """A text that is not empty, None where the key is absent."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.fail(key, f"{key} must be a text, got {shown(value)}")
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool | None:
        """true or false, None where the key is absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, f"{key} must be true or false, got {shown(value)}")
        return value

    def table(self, key: str, name: str) -> UserTable:
        """The table `[key.name]`."""
        group = self.values.get(key)
        value = group.get(name) if isinstance(group, dict) else None
        if not isinstance(value, dict):
            raise self.fail(key, f"{key} must hold tables, [{key}.NAME]")
        return UserTable(self.path, self.content, value, key, name)

    def names(self, key: str) -> tuple[str, ...]:
        """The names of the tables `[key.NAME]`; none where the key is absent."""
        group = self.values.get(key, {})
        if not isinstance(group, dict):
            raise self.fail(key, f"{key} must hold tables, [{key}.NAME]")
        return tuple(group)

    def rows(self, key: str) -> tuple[UserTable, ...]:
        """The rows `[[key]]`; none where the key is absent."""
        rows = self.values.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.fail(key, f"{key} must be written as tables, [[{key}]]")
        return tuple(UserTable(self.path, self.content, row, key, index) for index, row in enumerate(rows))


def read_user_file(path: str) -> UserTable:
    """A user's TOML file. Raises FileFormatError for one that cannot be read."""
    values, text = read_toml(Path(path))
    return UserTable(path, text, values)
