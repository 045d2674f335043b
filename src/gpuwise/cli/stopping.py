"""Stop signals that come before a run listens to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gpuwise.runs.stop_signals import STOP_SIGNALS


@contextmanager
def stops_interrupt() -> Iterator[None]:
    """A context in which stop signals interrupt as Ctrl-C does, so that a run which has not begun ends with exit code 130.

    By themselves they end a process at once, and a supervisor reads its exit code as a failure. Those that are ignored, or have
    a handler, keep it.
    """
    ending = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
