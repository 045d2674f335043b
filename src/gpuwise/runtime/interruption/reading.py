"""A read of data that does not come back: it is given up when the run is to end, and what was trained is saved."""

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
GRACE_S = 2.0  # for a read that is only slow
AGAIN_S = 5.0  # after which the read is interrupted once more: a bare `except:` of the job's may have caught the first
# Harmless where it meets no handler: its default is to be ignored (signal(7)), and only sockets with urgent data send it.
_NUDGE = getattr(signal, "SIGURG", None) if hasattr(signal, "pthread_kill") else None
# Where an exception would leave the random numbers of the training exchanged for those of the read.
_NOT_IN = (draws.__file__, contextlib.__file__)


class ReadGivenUp(BaseException):
    """Raised in the middle of a read that the end of the run does not wait for.

    request: why the run ends; silent_s: for how long nothing had come.
    """

    def __init__(self, request: StopRequest, silent_s: float):
        super().__init__(request.text)
        self.request, self.silent_s = request, silent_s


class Reads(Protocol):
    """Who reads. reading: whether a read is going on; reads: how many have begun."""

    reading: bool
    reads: int


class ReadWatch:
    """While entered, gives a read up that holds the end of the run up.

    A thread looks every TICK_S. When `stop_request` says that the run is to end, and the read going on has taken GRACE_S, the
    main thread is interrupted in it by a signal whose handler raises ReadGivenUp there. That ends whatever Python waits
    for: a worker process, a socket, a lock, a sleep. It does not end code in C that waits without looking at signals, nor
    a read outside the main thread, where Python runs no handlers; there is none on Windows.

    Arguments:
        stop_request: why the run is to end now, or None; called in the watch's own thread, while a read goes on.
        clock: seconds. wait: sleeps for so long, true when it is to end; for tests.
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
            self._thread.join()  # a nudge that came later would meet no handler, or another run's
            signal.signal(_NUDGE, signal.SIG_DFL if self._before is None else self._before)

    def look(self) -> bool:
        """One look, as the thread takes every TICK_S. Returns whether the read is to be given up."""
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
        if self._request is not None and self._reads.reading and where not in _NOT_IN:  # else the next look nudges again
            self._given_up_s = self._clock()
            raise ReadGivenUp(self._request, self._given_up_s - self._since_s)
