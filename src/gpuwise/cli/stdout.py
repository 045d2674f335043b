"""Standard output: a report, or under --json the JSON alone, whatever the user's code prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_json: TextIO | None = None  # where JSON goes, while everything else that is printed goes to stderr


def keep_for_json() -> None:
    """From here on what is printed goes to stderr: by Python, by C, and by processes that are started here.

    `answers()` is the stdout from before.
    """
    global _json
    own = sys.__stdout__
    _json = sys.stdout
    if own is not None and sys.stdout is own:
        own.flush()
        _json = os.fdopen(os.dup(own.fileno()), "w", encoding="utf-8", errors="backslashreplace")
        os.dup2(_standard_error(), own.fileno())
    sys.stdout = sys.stderr


def give_to_children() -> None:
    """From here on processes that are started have the stdout from before: ranks under --json keep it for that themselves."""
    own = sys.__stdout__
    if _json is None or own is None:
        return
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        os.dup2(_json.fileno(), own.fileno())


@contextmanager
def given_back() -> Iterator[None]:
    """Restores sys.stdout afterwards, unless it is the process's own.

    The process's own stays with the JSON until the process ends. What a job's atexit functions print, and what C's buffers
    still hold then, goes to stderr.
    """
    global _json
    before = sys.stdout
    try:
        yield
    finally:
        if before is not sys.__stdout__:
            _json, sys.stdout = None, before


def answers() -> TextIO:
    """The stream that results go to: JSON under --json, else a report."""
    return _json or sys.stdout


def _standard_error() -> int:
    """Its descriptor, or that of nothing at all where it is closed."""
    try:
        os.fstat(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return 2
