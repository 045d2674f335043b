"""Standard output and error, whatever the shell made of them: closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

import click

from gpuwise.cli.stdout import answers

_PRINTING = ("click.utils", "rich.console", __name__)  # modules whose calls write to standard output


def ready_streams() -> None:
    """Makes standard output and error writable.

    A closed descriptor would be taken by the first file that is opened, which then gets what is printed. Bytes of a path that
    are no UTF-8, and characters the terminal's encoding lacks, are printed as escapes, which JSON takes too.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Prints to standard error. If that is full or closed, only the exit code tells of the failure."""
    try:
        click.echo(text, err=True)
    except (OSError, ValueError):
        _silence(sys.stderr)


def print_json(data: object) -> None:
    """An error as a JSON object on standard output. Where that takes none, standard error and the exit code say it."""
    try:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False), file=answers())
    except OSError:
        silence_stdout()


def flush_stdout() -> None:
    """Flushes the buffer, so that errors occur here and not when Python ends. Raises OSError."""
    answers().flush()


def is_of_printing(error: OSError) -> bool:
    """Whether it is standard output that failed: of a full disk an error names no file, so its last call is looked at."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return error.filename is None and bool(frames) and frames[-1].f_globals.get("__name__") in _PRINTING


def silence_stdout() -> None:
    """Lets what is left in the buffer go nowhere: Python would complain again when it flushes at exit."""
    _silence(answers())


def _silence(stream: TextIO) -> None:
    with suppress(OSError, ValueError):  # no file behind it: nothing will be flushed to a pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
