"""A Job that makes no sense in a file of several: its error waits until that job is asked for, so that the others work."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.job.first_mistakes import unknown_keyword


@dataclass(frozen=True)
class Problem:
    """Why a job could not be made, and the line of the file where it stands."""

    job: Any
    error: GpuwiseError
    line: int


@dataclass(frozen=True)
class _Loading:
    path: str
    problems: list[Problem]


_loading: ContextVar[_Loading | None] = ContextVar("_loading", default=None)


@contextmanager
def postponed(path: str) -> Iterator[list[Problem]]:
    """While a file is loaded: errors of the jobs it makes at its top level are kept in the list instead of raised."""
    loading = _Loading(path, [])
    token = _loading.set(loading)
    try:
        yield loading.problems
    finally:
        _loading.reset(token)


def problem_of(job: Any) -> Problem | None:
    """What was kept of a job that could not be made; None for one that was, and for anything else."""
    return vars(job).get("_problem") if hasattr(job, "__dict__") and not isinstance(job, type) else None


def checked_keywords(make: Callable[..., None]) -> Callable[..., None]:
    """A Job's `__init__` that names the nearest to a keyword it does not have, and postpones errors of a file that loads."""
    known = [name for name in inspect.signature(make).parameters if name != "self"]

    @wraps(make)
    def checked(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            for name in keywords:
                if name not in known:
                    raise unknown_keyword(name, known)
            make(self, *arguments, **keywords)
        except GpuwiseError as error:
            loading, caller = _loading.get(), sys._getframe(1)
            top_level = caller.f_code.co_name == "<module>"
            if loading is None or not top_level or caller.f_code.co_filename != loading.path:
                raise
            problem = Problem(self, error, caller.f_lineno)
            loading.problems.append(problem)
            object.__setattr__(self, "_problem", problem)

    return checked
