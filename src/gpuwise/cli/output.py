"""Printing a result: JSON under --json, else a report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from gpuwise.cli.stdout import answers

if TYPE_CHECKING:
    from rich.console import RenderableType


class HasDict(Protocol):
    """A result with a JSON form."""

    def to_dict(self) -> Mapping[str, object]: ...


Result = TypeVar("Result", bound=HasDict | Sequence[HasDict])


def emit(result: Result, report: Callable[[Result], RenderableType], *, as_json: bool) -> None:
    """Prints a result as JSON, or report(result) as text: plain where stdout is not a terminal.

    Arguments:
        result: something with to_dict(), or a sequence of such.
    """
    if as_json:
        from gpuwise.report.json import to_json

        plain = [item.to_dict() for item in result] if isinstance(result, Sequence) else result.to_dict()
        click.echo(to_json(plain), file=answers())
        return
    from rich.console import Console

    if sys.stdout.isatty():
        Console(file=sys.stdout, highlight=False).print(report(result))
        return
    from gpuwise.report.printed import plain_text

    click.echo(plain_text(report(result)))
