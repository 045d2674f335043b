"""JSON that any reader takes: an infinite or undefined number becomes null."""

from __future__ import annotations

import json

from gpuwise.json_types import finite


def to_json(data: object) -> str:
    """Two-space indented text of plain data (dicts, sequences, numbers, strings, None)."""
    return json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False)
