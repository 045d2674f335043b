"""JSON that any reader takes: an infinite or undefined number becomes null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(data: Any) -> str:
    """Two-space indented text of plain data (dicts, sequences, numbers, strings, None)."""
    return json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
