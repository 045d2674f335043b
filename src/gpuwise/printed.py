"""Results that print: `str` is the report the command line shows, `repr` is one line. gpuwise.report has the words."""

from __future__ import annotations

from importlib import import_module

WORDS = "gpuwise.report.printed"  # loaded when something is printed, so that no room below reports imports them


class Printed:
    """What a result inherits."""

    __slots__ = ()

    def __str__(self) -> str:
        text: str = import_module(WORDS).as_text(self)
        return text

    def __repr__(self) -> str:
        line: str = import_module(WORDS).as_line(self)
        return line
