"""Which cases of a test run by default: of those that show alike things, the others are left to `-m slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *, slow: Collection[Any]) -> list[Any]:
    """The cases of `parametrize`, those in `slow` marked so."""
    cases = list(cases)
    assert all(case in cases for case in slow), "a slow case that is none"
    return [pytest.param(*_values(case), marks=pytest.mark.slow) if case in slow else case for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
