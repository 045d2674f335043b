"""A tracing that takes a while says so on stderr: on a terminal with the seconds it has taken, elsewhere in one line."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpuwise.strategy import Strategy

QUIET_S = 3.0
EVERY_S = 1.0


@contextmanager
def shown(job: str, strategy: Strategy) -> Iterator[None]:
    """Says nothing for QUIET_S seconds."""
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(words(job, strategy), done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def words(job: str, strategy: Strategy) -> str:
    from gpuwise.report.parts import strategy_words

    return f"tracing the step of {job or 'the job'} ({strategy_words(strategy)})"


def _watch(text: str, done: threading.Event) -> None:
    began_s = time.monotonic()
    if done.wait(QUIET_S):
        return
    stream = sys.stderr
    if not stream.isatty():
        print(f"{text} ...", file=stream, flush=True)
        return
    while not done.wait(EVERY_S):
        print(f"\r{text}: {time.monotonic() - began_s:.0f} s", end="", file=stream, flush=True)
    print("\r\x1b[2K", end="", file=stream, flush=True)  # nothing of it stays above the answer
