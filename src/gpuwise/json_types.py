"""The types of what `json.loads` returns and `json.dumps` takes.

What is read from outside is a JsonObject until its keys and values have been checked. A value that may be anything, such as
the argument of a check, is an `object`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, overload

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
JsonObject: TypeAlias = Mapping[str, Json]


@overload
def finite(data: Mapping[str, object]) -> dict[str, object]: ...
@overload
def finite(data: object) -> object: ...
def finite(data: object) -> object:
    """Plain data with None for every number that is infinite or undefined, which JSON does not have."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data
