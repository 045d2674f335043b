"""`gpuwise train` on several ranks: as the launcher of its own, or as a rank that speaks only when it is its turn."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from gpuwise.cli.failure import DEBUG
from gpuwise.cli.stdout import give_to_children
from gpuwise.cli.streams import say
from gpuwise.errors import OtherRankError
from gpuwise.hardware.detect.ranks import launched_here, rank_environment


def command_line() -> list[str]:
    """The arguments of the command that click runs now, as typed."""
    arguments = click.get_current_context().find_root().obj
    return list(arguments) if isinstance(arguments, list) else sys.argv[1:]


def start(arguments: Sequence[str], ranks: int, *, max_restarts: int, threads: int | None) -> int:
    """Runs this command as so many ranks. Returns their exit code. Raises OtherRankError with the first failure."""
    from gpuwise.hardware.detect import detect_cpu
    from gpuwise.runtime.devices import accelerator
    from gpuwise.runtime.ranks.start import start_ranks

    cores = detect_cpu().cores
    if accelerator() is None and ranks * (threads or 1) > cores:
        say(f"note: {ranks} ranks{f' of {threads} threads' if threads else ''} share {cores} cores: they wait for each other.")
    give_to_children()
    return start_ranks(
        ["-m", "gpuwise", *arguments],
        ranks=ranks,
        threads=max(1, cores // ranks),
        max_restarts=max_restarts,
        say=lambda text: say(f"note: {text}"),
    )


@contextmanager
def speaking_in_turn() -> Iterator[bool]:
    """A context for a verb that may be one rank of several. Yields whether this process shows results.

    Of the ranks, rank 0 prints results and warnings, and the first that has failed prints its error, naming itself. Where
    `gpuwise train` is the launcher, that prints it.
    """
    environment = rank_environment()
    if environment is None:
        yield True
        return
    if environment.rank:
        warnings.showwarning = lambda *_, **__: None  # rank 0 warns of the same
    try:
        yield environment.rank == 0
    except click.exceptions.Exit:
        raise
    except Exception as error:
        from gpuwise.runtime.ranks.last_words import LastWords

        if os.environ.get(DEBUG, "0") not in {"", "0"}:
            traceback.print_exception(error)
        words = LastWords.of(error, rank=environment.rank, host=_host())
        reported = isinstance(error, OtherRankError)
        if launched_here() and not reported:
            from gpuwise.runtime.ranks.joining import leave_words

            reported = leave_words(environment, words)
        if reported:
            raise click.exceptions.Exit(words.exit_code) from error
        raise words.error() from error


def _host() -> str:
    import socket

    return socket.gethostname()
