"""plainly: verbs take NumPy's numbers and paths as Python's numbers and strings."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def plainly(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb with each argument as `plain` has it."""

    @wraps(verb)
    def taking(*args: P.args, **keywords: P.kwargs) -> R:
        return cast(Callable[..., R], verb)(*map(plain, args), **{name: plain(value) for name, value in keywords.items()})

    return taking


def plain(value: object) -> object:
    """The Python number of a NumPy scalar, and the string of a path; anything else, and each list, as it is."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value
