"""Results that print: `str` is the report that the command line shows, `repr` is one line. gpuwise.report makes both."""

from __future__ import annotations

from importlib import import_module

REPORT = "gpuwise.report.printed"  # loaded when something is printed, so that no room above reports imports it


class Printed:
    """A result inherits this."""

    __slots__ = ()

    def __str__(self) -> str:
        text: str = import_module(REPORT).as_text(self)
        return text

    def __repr__(self) -> str:
        line: str = import_module(REPORT).as_line(self)
        return line
