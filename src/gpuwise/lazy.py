"""Names of a package are imported when first used, so that a verb imports only what it needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazily(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    Arguments:
        package: its full name.
        names: the names that the package offers, by the module of it that has them.
    """
    modules = {name: f"{package}.{module}" for module, offered in names.items() for name in offered}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
