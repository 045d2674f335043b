"""Aborts a read of data that hangs when the run must end, so that the training can be saved."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from gpuwise.runtime.data import draws
from gpuwise.runtime.interruption.signals import Handler
from gpuwise.runtime.interruption.stop import StopRequest

TICK_S = 0.5
GRACE_S = 2.0  # time for a read that is merely slow
AGAIN_S = 5.0  # time to the next interruption; a bare `except:` of the job may have caught the first
# Harmless without a handler: it is ignored by default (signal(7)), and only sockets with urgent data send it.
_NUDGE = getattr(signal, "SIGURG", None) if hasattr(signal, "pthread_kill") else None
# Code in which an exception would leave training with the random state of the read.
_NOT_IN = (draws.__file__, contextlib.__file__)


class ReadGivenUp(BaseException):
    """Raised within a read to abort it when the run must end.

    Arguments:
        request: the reason why the run ends.
        silent_s: seconds since the last data.
    """

    def __init__(self, request: StopRequest, silent_s: float):
        super().__init__(request.text)
        self.request, self.silent_s = request, silent_s


class Reads(Protocol):
    """An object that reads data.

    Attributes:
        reading: whether a read is in progress.
        reads: reads begun so far.
    """

    reading: bool
    reads: int


class ReadWatch:
    """A context that aborts a read which delays the end of the run.

    A thread checks every TICK_S. If `stop_request` returns a reason to end the run and the current read has taken GRACE_S,
    the thread sends a signal to the main thread, and the signal's handler raises ReadGivenUp there. This ends any wait in
    Python: for a worker process, a socket, a lock or a sleep.

    It has no effect on:
        - C code that waits without checking for signals
        - a read outside the main thread, where Python runs no signal handlers
        - Windows

    Arguments:
        reads: the object that reads.
        stop_request: returns the reason to end the run now, or None; called in the watch's thread during a read.
        clock: a clock in seconds.
        wait: sleeps for the given seconds and returns true to end the thread; for tests.
    """

    def __init__(
        self,
        reads: Reads,
        stop_request: Callable[[], StopRequest | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ):
        self._reads, self._stop_request, self._clock = reads, stop_request, clock
        self._number, self._since_s = -1, 0.0
        self._request: StopRequest | None = None
        self._given_up_s = -math.inf
        self._before: Handler = None
        self._end = threading.Event()
        self._wait = wait or self._end.wait
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ReadWatch:
        if _NUDGE is not None and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(_NUDGE, self._on)
            self._thread = threading.Thread(target=self._run, name="gpuwise-reads", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None and _NUDGE is not None:
            self._thread.join()  # a later signal would reach no handler, or another run's
            signal.signal(_NUDGE, signal.SIG_DFL if self._before is None else self._before)

    def look(self) -> bool:
        """Performs one check. Returns whether the read must be aborted."""
        now_s = self._clock()
        if not self._reads.reading or now_s - self._given_up_s < AGAIN_S:
            return False
        if self._reads.reads != self._number:
            self._number, self._since_s = self._reads.reads, now_s
        self._request = self._request or self._stop_request()
        return self._request is not None and now_s - self._since_s >= GRACE_S

    def _run(self) -> None:
        assert _NUDGE is not None
        main = threading.main_thread().ident
        while not self._wait(TICK_S):
            if self.look() and main is not None:
                signal.pthread_kill(main, _NUDGE)

    def _on(self, number: int, frame: FrameType | None) -> None:
        where = None if frame is None else frame.f_code.co_filename
        if self._request is not None and self._reads.reading and where not in _NOT_IN:  # otherwise the next check signals again
            self._given_up_s = self._clock()
            raise ReadGivenUp(self._request, self._given_up_s - self._since_s)
