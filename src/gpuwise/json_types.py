"""The types of what `json.loads` returns and `json.dumps` takes.

What is read from outside is a JsonObject until its keys and values have been checked. A value that may be anything, such as
the argument of a check, is an `object`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
JsonObject: TypeAlias = Mapping[str, Json]
