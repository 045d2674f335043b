"""How a rank's failure reaches the others: the error of a rank becomes last words, and a lost peer gets its name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpuwise.errors import GpuwiseError, OtherRankError, RankLostError
from gpuwise.hardware.detect.ranks import launched_here, leads_machine
from gpuwise.runtime.ranks.last_words import LastWords, is_of_others
from gpuwise.runtime.ranks.pulse import PULSE_S, Pulse
from gpuwise.runtime.ranks.ranks import Ranks

# For the cause of a failed collective: a launcher tells of a killed process at once, and three pulses show who has none.
CAUSE_S = 12.0
_DEAD_S = 3 * PULSE_S


@contextmanager
def last_words(ranks: Ranks, pulse: Pulse | None) -> Iterator[None]:
    """A context that leaves what it raises as last words. Raises OtherRankError where another rank was the first to fail."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        if not ranks.several or isinstance(error, OtherRankError):
            raise
        cause = _cause(ranks, pulse, error)
        if cause is error:
            raise
        raise cause from error


def end_process(words: LastWords, own: bool, *, without_store: bool) -> None:
    """Ends a process whose main thread does not come back from a collective. To be called in another thread.

    Arguments:
        own: whether this rank has left the words, and so tells the user, unless its launcher does.
        without_store: whether the store has gone, and perhaps the launcher; the first rank of each machine says so.
    """
    if (own and not launched_here()) if not without_store else leads_machine():
        with suppress(OSError, ValueError):
            print(f"error: {words.error()}", file=sys.stderr, flush=True)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(words.exit_code or 1)


def _cause(ranks: Ranks, pulse: Pulse | None, error: BaseException) -> BaseException:
    """The error to raise: this one if it is the first failure of the run, else one that tells of the first."""
    lost = RankLostError(
        f"rank {ranks.rank} on {ranks.host} has lost the other ranks: {_text(error)}",
        ["see what ended rank 0 or the launcher", "start again: the run goes on from its last checkpoint"],
    )
    try:
        if is_of_others(error):
            if (words := _words_of_others(ranks, pulse)) is not None:
                return words.error()
            error = lost  # no rank gives a reason; with --max-restarts the run starts again
        words = LastWords.of(error, rank=ranks.rank, host=ranks.host)
        first = ranks.leave(words)
    except RuntimeError:  # the store has gone, too
        return lost if is_of_others(error) else error
    return error if first == words else first.error()


def _words_of_others(ranks: Ranks, pulse: Pulse | None) -> LastWords | None:
    """The words of the rank that has made a collective fail; None if none has failed or fallen silent."""
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < CAUSE_S:
        if (words := ranks.failure()) is not None:
            return words
        silent = [] if pulse is None else pulse.silent_ranks(since_s=_DEAD_S)
        if silent and waited_s > _DEAD_S:
            rank, host = silent[0], ranks.hosts[silent[0]]
            error = RankLostError(
                f"rank {rank} on {host} has ended without a word; it was killed, or its machine has gone.",
                ["see what its launcher or its system says of it", "start again: the run goes on from its last checkpoint"],
            )
            return ranks.leave(LastWords.of(error, rank=rank, host=host))
        time.sleep(0.1)
    return None


def _text(error: BaseException) -> str:
    return error.what if isinstance(error, GpuwiseError) else f"{type(error).__name__}: {str(error)[:200]}"
