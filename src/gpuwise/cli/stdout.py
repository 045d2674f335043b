"""What stdout is for: a report, or under --json the JSON and nothing else, whatever the user's code prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def given_back() -> Iterator[None]:
    """Afterwards sys.stdout is what it was before, where that is not the process's own.

    That one stays with the JSON until the process ends: what a job's atexit functions print, and what C's buffers still hold
    then, is no JSON either.
    """
    global _json
    found = sys.stdout
    try:
        yield
    finally:
        if found is not sys.__stdout__:
            _json, sys.stdout = None, found


def answers() -> TextIO:
    """The stream for what was asked: JSON under --json, else a report."""
    return _json or sys.stdout


def _standard_error() -> int:
    """Its descriptor, or that of nothing at all where it is closed."""
    try:
        os.fstat(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return 2
