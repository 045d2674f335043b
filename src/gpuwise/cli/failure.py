"""How failures end: cause and ways out on stderr, a JSON object on stdout under --json, and the exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from gpuwise.cli.streams import is_of_printing, print_json, say, silence_stdout
from gpuwise.errors import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from gpuwise.errors import EXIT_UNEXPECTED as EXIT_UNEXPECTED
from gpuwise.errors import FileFormatError, GpuwiseError, JobError, message_of, nearest

EXIT_BROKEN_PIPE = 1  # as click ends when the pipe breaks while a verb prints
DEBUG = "GPUWISE_DEBUG"


class UsageError(GpuwiseError):
    """A command line that click cannot parse."""

    code = "usage"


class OutputError(GpuwiseError):
    """Standard output that cannot be written to."""

    code = "output"


class UnexpectedError(GpuwiseError):
    """A fault of gpuwise itself, or of what it called."""

    code = "unexpected"
    exit_code = EXIT_UNEXPECTED


@contextmanager
def handled(arguments: Sequence[str]) -> Iterator[None]:
    """Runs a verb; leaves by SystemExit whenever it fails.

    With GPUWISE_DEBUG=1 in the environment, tracebacks are shown, and unexpected exceptions pass through.
    """
    as_json = "--json" in arguments
    debug = os.environ.get(DEBUG, "0") not in {"", "0"}
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            yield
    except GpuwiseError as error:
        if debug:
            traceback.print_exception(error)
        error.ways_out = error.ways_out or _ways_out(error, arguments)
        _end(error, as_json)
    except click.ClickException as error:
        _end(_usage(error), as_json)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted.")
        if as_json:
            print_json({"error": {"code": "interrupted", "message": "interrupted.", "ways_out": []}})
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing left to say. Python would complain again when it flushes at exit.
        silence_stdout()
        sys.exit(EXIT_BROKEN_PIPE)
    except SystemExit as error:  # of the job's code, a second stop signal, or click's where a pipe broke: verbs have none
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if type(error) is not SystemExit or frame.f_globals.get("__name__") == "click.core":
            raise
        _end(
            JobError(
                f"the job's code ended the program: sys.exit({message_of(error) or 0}).",
                ["raise an error where something is wrong"],
            ),
            as_json,
        )
    except (Exception, GeneratorExit) as error:
        if isinstance(error, OSError) and is_of_printing(error):
            silence_stdout()
            _end(
                OutputError(
                    f"standard output cannot be written to: {error.strerror or error}.",
                    ["redirect it to a file on a disk with free space"],
                ),
                as_json=False,
            )
        if debug:
            raise
        name = type(error).__name__
        _end(
            UnexpectedError(
                f"{name}: {message_of(error) or 'no message'}", [f"run again with {DEBUG}=1 for the traceback, and report it"]
            ),
            as_json,
        )


def _ways_out(error: GpuwiseError, arguments: Sequence[str]) -> tuple[str, ...]:
    """A way out of what was raised without one."""
    if isinstance(error, FileFormatError):
        return ("check the path, and that the file can be read",)
    if isinstance(error, JobError):
        return (f"run again with {DEBUG}=1 for the traceback",)
    verb = next((word for word in arguments if not word.startswith("-")), "")
    return (f"gpuwise {verb} --help".replace("  ", " "),)


def tell(error: GpuwiseError) -> None:
    """Cause and ways out on stderr."""
    say(f"{click.style('error:', fg='red', bold=True)} {error}")


def _end(error: GpuwiseError, as_json: bool) -> None:
    tell(error)
    if as_json:
        print_json(error.to_dict())
    sys.exit(error.exit_code)


def _usage(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "gpuwise"
    message, ways = error.format_message(), [f"{command} --help"]
    if isinstance(error, click.NoSuchOption) and context is not None:
        flags = [flag.removeprefix("--") for option in context.command.params for flag in option.opts if flag.startswith("--")]
        near = nearest(error.option_name.lstrip("-").replace("-", "_"), [flag.replace("-", "_") for flag in flags])
        message = f"no such option {error.option_name}"
        ways = [f"nearest: {', '.join('--' + name.replace('_', '-') for name in near)}", *ways] if near else ways
    return UsageError(message if message.endswith((".", "?")) else f"{message}.", ways)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *other: object) -> None:
    say(f"{click.style('warning:', fg='yellow')} {message}")
