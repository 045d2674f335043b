"""Printing a result: JSON under --json, else a report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

from gpuwise.cli.stdout import answers

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPED_WIDTH = 160  # columns where neither a terminal nor $COLUMNS says how many


def emit(result: Any, report: Callable[[Any], RenderableType], *, as_json: bool) -> None:
    """Prints a result as JSON, or report(result) as text: plain where stdout is not a terminal.

    Arguments:
        result: something with to_dict(), or a sequence of such.
    """
    if as_json:
        from gpuwise.report.json import to_json

        plain = result.to_dict() if hasattr(result, "to_dict") else [item.to_dict() for item in result]
        click.echo(to_json(plain), file=answers())
        return
    from rich.console import Console

    if sys.stdout.isatty():
        Console(file=sys.stdout, highlight=False).print(report(result))
        return
    text = StringIO()
    width = None if "COLUMNS" in os.environ else PIPED_WIDTH
    Console(file=text, width=width, highlight=False).print(report(result))
    click.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))  # tables are padded to their width
