"""Stop signals that come before a run listens to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGTERM", "SIGUSR1", "SIGHUP")  # beside Ctrl-C, for which Python has this already


@contextmanager
def stops_interrupt() -> Iterator[None]:
    """A context in which stop signals interrupt as Ctrl-C does, so that a run which has not begun ends with exit code 130.

    By themselves they end a process at once, and a supervisor reads its exit code as a failure. Ignored ones stay ignored.
    """
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) is signal.SIG_DFL}
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
