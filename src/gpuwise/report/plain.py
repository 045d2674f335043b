"""Reading of plain data, as `to_dict` and logs have it: what is absent, or of another type, is None or empty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

Record: TypeAlias = Mapping[str, object]


def number(record: Record, name: str) -> float | None:
    """A finite number of a record; None where it has none by that name."""
    value = record.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def text(record: Record, name: str) -> str:
    """A text of a record; "" where it has none by that name."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


def part(record: Record, name: str) -> Record:
    """A record inside a record; empty where there is none by that name."""
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


def parts(record: Record, name: str) -> list[Record]:
    """The records of a list inside a record."""
    value = record.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def texts(record: Record, name: str) -> list[str]:
    """The items of a list inside a record, as texts."""
    value = record.get(name)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
