"""Errors of a Job in a file of several: raised when that job is requested, so that the others work."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps

from gpuwise.errors import GpuwiseError
from gpuwise.job.argument_checks import unknown_keyword


@dataclass(frozen=True)
class Problem:
    """Why a job could not be made.

    Attributes:
        job: the unfinished object, which the name in the file refers to.
        error: what its `__init__` raised.
        line: of the file, where the job is made.
    """

    job: object
    error: GpuwiseError
    line: int


@dataclass(frozen=True)
class _Loading:
    path: str
    problems: list[Problem]


_loading: ContextVar[_Loading | None] = ContextVar("_loading", default=None)


@contextmanager
def deferred_errors(path: str) -> Iterator[list[Problem]]:
    """Inside, errors of the jobs that the file makes at its top level are put into the list instead of raised.

    Arguments:
        path: of the file that is being loaded.
    """
    loading = _Loading(path, [])
    token = _loading.set(loading)
    try:
        yield loading.problems
    finally:
        _loading.reset(token)


def problem_of(job: object) -> Problem | None:
    """Why this job could not be made; None for one that was, and for anything else."""
    return vars(job).get("_problem") if hasattr(job, "__dict__") and not isinstance(job, type) else None


def checked_keywords(make: Callable[..., None]) -> Callable[..., None]:
    """A Job's `__init__` that names the nearest keyword for an unknown one, and defers the errors of a file that loads."""
    fields = [name for name in inspect.signature(make).parameters if name != "self"]

    @wraps(make)
    def checked(self: object, *arguments: object, **keywords: object) -> None:
        try:
            for name in keywords:
                if name not in fields:
                    raise unknown_keyword(name, fields)
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
