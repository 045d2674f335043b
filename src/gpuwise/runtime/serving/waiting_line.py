"""WaitingLine: requests between their clients and the model, taken out in batches with a window."""

from __future__ import annotations

import time
from collections import deque
from threading import Condition
from typing import Protocol

import numpy as np

from gpuwise.serving.windowed import WindowPolicy


class Clock(Protocol):
    """The time of a server, in seconds since its load began."""

    def now_s(self) -> float: ...

    def wait(self, changed: Condition, seconds: float) -> bool:
        """Sleeps until the condition, which the caller has acquired, is notified. False where it was not for `seconds`."""
        ...


class RealClock:
    """The clock of this machine, from when this object is made."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def wait(self, changed: Condition, seconds: float) -> bool:
        return changed.wait(None if np.isinf(seconds) else seconds)


class WaitingLine:
    """Requests that wait, first come, first served. The rules are those of gpuwise.serving.windowed.serve_groups.

    Clients call `offer`, `withdraw` and `close`; the server calls `next_group`. They may be in different threads.
    """

    def __init__(self, policy: WindowPolicy, clock: Clock) -> None:
        self._policy, self._clock = policy, clock
        self._changed = Condition()
        self._waiting: deque[tuple[int, float]] = deque()  # request and arrival
        self._busy = self._closed = False

    def offer(self, request: int, *, arrival_s: float) -> bool:
        """Queues a request; False where the queue is full, which turns it away."""
        with self._changed:
            if self._busy and self._policy.queue is not None and len(self._waiting) >= self._policy.queue:
                return False
            self._waiting.append((request, arrival_s))
            self._changed.notify()
            return True

    def withdraw(self, request: int) -> bool:
        """Takes a request out whose client leaves; False where it is not waiting any more."""
        with self._changed:
            for position, (waiting, _) in enumerate(self._waiting):
                if waiting == request:
                    del self._waiting[position]
                    return True
            return False

    def close(self) -> None:
        """No further request comes."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def next_group(self) -> list[int]:
        """The requests of the next batch, as soon as it is full or its window is over; none once the line is closed."""
        policy = self._policy
        with self._changed:
            self._busy = False
            while len(self._waiting) < policy.batch:
                if not self._waiting:
                    if self._closed:
                        return []
                    self._clock.wait(self._changed, np.inf)
                    continue
                left_s = self._waiting[0][1] + policy.window_s - self._clock.now_s()
                if not self._clock.wait(self._changed, max(0.0, left_s)):
                    break
            self._busy = True
            return [self._waiting.popleft()[0] for _ in range(min(policy.batch, len(self._waiting)))]
