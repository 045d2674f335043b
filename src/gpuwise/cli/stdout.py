"""What stdout is for: a report, or under --json the JSON and nothing else, whatever the user's code prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_json: TextIO | None = None  # where JSON goes, while everything else that is printed goes to stderr


@contextmanager
def json_alone() -> Iterator[None]:
    """Within it, what is printed goes to stderr: by Python, by C, and by processes that are started here.

    `answers()` is the stdout from before. The process's own stdout is not given back at the end: what a job's atexit
    functions print, and what C's buffers still hold when the process ends, is no JSON either.
    """
    global _json
    found = sys.stdout
    own = sys.__stdout__
    if own is not None and found is own:
        own.flush()
        _json = os.fdopen(os.dup(own.fileno()), "w", encoding="utf-8", errors="backslashreplace")
        os.dup2(_standard_error(), own.fileno())
        sys.stdout = sys.stderr
        yield
        return
    _json, sys.stdout = found, sys.stderr
    try:
        yield
    finally:
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
