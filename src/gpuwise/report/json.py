"""JSON that any reader takes: an infinite or undefined number becomes null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(data: Any) -> str:
    """Two-space indented text of plain data (dicts, sequences, numbers, strings, None)."""
    return json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False)


def finite(data: Any) -> Any:
    """The same with null for every number that is infinite or undefined."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data
