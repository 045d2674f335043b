"""Stop signals: the first lets the current step finish, the second ends at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

# SIGUSR1 is what a Slurm job asks for as a warning before its limit (sbatch --signal=USR1@60), SIGHUP what a closed
# terminal sends. Windows has neither.
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
# GNU timeout signals the process and then its group: the same signal twice within microseconds is one request. Nobody
# presses Ctrl-C twice that fast.
SAME_REQUEST_S = 0.05

# What signal.signal takes and returns; None: a handler that was not set from Python.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class InterruptedAtOnce(KeyboardInterrupt):
    """A second Ctrl-C."""


class TerminatedAtOnce(SystemExit):
    """A second stop signal of another kind; its code is 128 + the signal."""


# What ends a run at once. Everything else that its code raises is its own: sys.exit, KeyboardInterrupt, GeneratorExit.
AT_ONCE = (InterruptedAtOnce, TerminatedAtOnce)


class StopSignals:
    """While entered, `received` holds the first stop signal; a second raises InterruptedAtOnce (a KeyboardInterrupt) or
    TerminatedAtOnce (a SystemExit).

    SIGINT, SIGTERM, SIGUSR1 and SIGHUP are stop signals. The handlers found are put back on exit. Outside the main
    thread, where Python allows no handlers, nothing is changed. A signal the process was told to ignore (nohup) stays
    ignored.

    Arguments:
        on_first: called, in the main thread between two of its operations, when the first has arrived.
        clock: seconds, to tell a second request from the same one delivered twice.
    """

    def __init__(self, on_first: Callable[[], None] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.received: signal.Signals | None = None
        self._on_first, self._clock, self._received_s = on_first, clock, 0.0
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                handler = signal.getsignal(number)
                if handler is not None and handler is not signal.SIG_IGN:  # None: installed by C code, cannot be put back
                    self._before[number] = signal.signal(number, self._on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_s = signal.Signals(number), self._clock()
            if self._on_first:
                self._on_first()
        elif number == self.received and self._clock() - self._received_s < SAME_REQUEST_S:
            return
        elif number == signal.SIGINT:
            raise InterruptedAtOnce
        else:
            raise TerminatedAtOnce(128 + number)
