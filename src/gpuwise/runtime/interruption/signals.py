"""Stop signals: the first lets the current step finish, the second ends the run at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

from gpuwise.runs.stop_signals import STOP_SIGNALS as STOP_SIGNALS

# GNU timeout signals the process and then its group, so the same signal twice within microseconds counts as one request.
# Nobody presses Ctrl-C twice that fast.
SAME_REQUEST_S = 0.05

# Handlers of signal.signal; None stands for a handler that was not set from Python.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class InterruptedAtOnce(KeyboardInterrupt):
    """A second Ctrl-C."""


class TerminatedAtOnce(SystemExit):
    """A second stop signal of another kind; its code is 128 + the signal."""


# Exceptions that end a run at once. SystemExit, KeyboardInterrupt and GeneratorExit otherwise belong to the job's code.
AT_ONCE = (InterruptedAtOnce, TerminatedAtOnce)


class StopSignals:
    """A context that handles stop signals: SIGINT, SIGTERM, SIGUSR1 and SIGHUP.

    `received` is the first signal. A second one raises InterruptedAtOnce (a KeyboardInterrupt) or TerminatedAtOnce (a
    SystemExit). The previous handlers are restored on exit. Outside the main thread, where Python allows no handlers,
    nothing changes. A signal that the process already ignores (nohup) stays ignored.

    Arguments:
        on_first: called in the main thread when the first signal arrives.
        clock: a clock in seconds, to distinguish a second request from a signal delivered twice.
    """

    def __init__(self, on_first: Callable[[], None] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.received: signal.Signals | None = None
        self._on_first, self._clock, self._received_s = on_first, clock, 0.0
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                handler = signal.getsignal(number)
                if handler is not None and handler is not signal.SIG_IGN:  # None: installed by C code, cannot be restored
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
