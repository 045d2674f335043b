"""--memory-plot: memory over the step as a picture, in a file or in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cost.timeline import Timeline


def memory_plot_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--memory-plot", metavar="FILE",
                        help="Memory over the step as a picture: FILE.svg, FILE.png, or - for text.")(function)  # fmt: skip


def check_plot(path: str, *, as_json: bool) -> None:
    """Raises InputError before any work where the picture could not be shown."""
    from gpuwise.report.memory_picture import check_path

    if path != "-":
        check_path(path)
    elif as_json:
        raise InputError("--memory-plot - prints text, and --json nothing but JSON.", ["--memory-plot memory.svg"])


def show(timeline: Timeline, path: str) -> None:
    """Prints the picture, or writes it and says where."""
    from gpuwise.report.memory_picture import save_picture, text_picture

    if path == "-":
        click.echo(text_picture(timeline))
    else:
        click.echo(f"memory picture written to {save_picture(timeline, path)}", err=True)
