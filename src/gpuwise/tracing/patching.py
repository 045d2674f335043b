"""Temporary changes of attributes of PyTorch and other libraries during a recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """A context in which the owner's attribute has this value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
