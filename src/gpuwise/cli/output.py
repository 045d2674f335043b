"""Printing a result: JSON under --json, else a report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuwise.cli.stdout import answers

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    from gpuwise.report.printed import plain_text

    click.echo(plain_text(report(result)))
