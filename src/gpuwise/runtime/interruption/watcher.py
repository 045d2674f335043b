"""A thread that polls a source of notices every few seconds, so that training never waits for an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpuwise.runtime.interruption.notices import POLL_S, Notice, NoticeSource
from gpuwise.units import format_duration

# Seconds of failure before the user is informed, and seconds between polls from then on. Azure's first answer may take
# two minutes.
FAILING_S, SELDOM_S = 180.0, 60.0


class Watcher:
    """A context that polls a source in a thread.

    Attributes:
        latest: the current notice; an unusable answer leaves it unchanged.
        problem: a sentence, set once when no usable answer has arrived for FAILING_S.

    Arguments:
        source: the source of notices.
        every_s: seconds between two polls.
        on_change: called in the watcher's thread when `latest` or `problem` changes.
        clock: a clock in seconds.
        wait: sleeps for the given seconds and returns true to end the thread; for tests.
    """

    def __init__(
        self,
        source: NoticeSource,
        *,
        every_s: float = POLL_S,
        on_change: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.latest: Notice | None = None
        self.problem: str | None = None
        self._source, self._every_s, self._on_change, self._clock = source, every_s, on_change, clock
        self._answered_s = clock()
        self._end = threading.Event()
        self._wait = wait or self._end.wait
        self._thread = threading.Thread(target=self._run, name="gpuwise-notices", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns at once; a poll in progress ends by itself."""
        self._end.set()

    def look(self) -> None:
        """One poll."""
        try:
            notice = self._source.poll()
        except Exception as error:  # a source may be the user's own code; its error must not end the watcher
            silent_s = self._clock() - self._answered_s
            if self.problem is None and silent_s >= FAILING_S:
                why = " ".join(str(error).split())[:300] or type(error).__name__
                self.problem = (
                    f"interruption notices of {self._source.name} could not be read for "
                    f"{format_duration(silent_s)} ({why}); signals and checkpoints remain."
                )
                self._changed()
            return
        self._answered_s = self._clock()
        if notice != self.latest:
            self.latest = notice
            self._changed()

    def _run(self) -> None:
        self.look()
        while not self._wait(SELDOM_S if self.problem else self._every_s):
            self.look()

    def _changed(self) -> None:
        if self._on_change:
            self._on_change()
