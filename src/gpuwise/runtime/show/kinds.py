"""Selects the display of a run by name, or by the type of its stream."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from gpuwise.errors import InputError
from gpuwise.runtime.show.displays import Display, LineDisplay, Silent
from gpuwise.runtime.show.panel import Panel

KINDS = ("panel", "bar", "plain", "silent")  # bar: an earlier name of the panel


def display(kind: str = "auto", stream: TextIO | None = None, *, title: str = "") -> Display:
    """Makes a display.

    Arguments:
        kind: panel (or bar) | plain | silent | auto; auto is a panel on a terminal and plain lines elsewhere.
        stream: stream to print to.
        title: title of the panel, the job's name.

    Raises InputError for another kind.
    """
    stream = stream or sys.stderr
    if kind == "auto":
        kind = "panel" if stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown") else "plain"
    if kind not in KINDS:
        raise InputError(f"unknown kind of progress {kind!r}.", [f"one of: auto, {', '.join(KINDS)}"])
    if kind in ("panel", "bar"):
        return Panel(stream, title=title)
    return LineDisplay(stream) if kind == "plain" else Silent(stream)
