"""Displays of the progress of tracing, which may take a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from gpuwise.strategy import Strategy

Display = Callable[[str, Strategy], AbstractContextManager[object]]
"""Called with the job's name and the strategy; what it returns is entered while they are traced."""

_display: ContextVar[Display | None] = ContextVar("gpuwise_tracing_display", default=None)


@contextmanager
def tracing_shown_by(display: Display) -> Iterator[None]:
    """A context in which `display` shows every tracing."""
    before = _display.set(display)
    try:
        yield
    finally:
        _display.reset(before)


def tracing(job: str, strategy: Strategy) -> AbstractContextManager[object]:
    """A context around the tracing of a job under a strategy."""
    display = _display.get()
    return nullcontext() if display is None else display(job, strategy)
