"""Clients: they send each request of a load at its arrival, and leave where its start takes too long."""

from __future__ import annotations

from collections import deque
from threading import Event
from typing import Protocol

import numpy as np

from gpuwise.runtime.serving.waiting_line import Clock
from gpuwise.serving.requests import Requests


class RequestLine(Protocol):
    """Where requests go, as WaitingLine has it."""

    def offer(self, request: int, *, arrival_s: float) -> bool: ...

    def withdraw(self, request: int) -> bool: ...

    def close(self) -> None: ...


class Clients:
    """The clients of a load, one step after the other.

    Attributes:
        turned_away: requests that met a full queue.
        left: requests whose clients left before they started.
        late_s: longest delay of a request behind its arrival. Its latency counts from the arrival.
    """

    def __init__(self, load: Requests, line: RequestLine, *, patience_s: float = np.inf) -> None:
        self._line, self._count = line, len(load)
        self._arrivals = deque(enumerate(load.arrival_s.tolist()))
        self._leaving: deque[tuple[int, float]] = deque()
        self._patience_s = patience_s
        self.turned_away: list[int] = []
        self.left: list[int] = []
        self.late_s = 0.0
        if not self._arrivals:
            line.close()

    @property
    def sent(self) -> int:
        """Requests sent so far, the first ones of the load."""
        return self._arrivals[0][0] if self._arrivals else self._count

    def next_s(self) -> float:
        """When the next client does something; infinite once none does."""
        return min(
            self._leaving[0][1] if self._leaving else np.inf,
            self._arrivals[0][1] if self._arrivals else np.inf,
        )

    def act(self, now_s: float) -> None:
        """What the next client does: it leaves, or sends its request. Who leaves makes room for who comes."""
        if self._leaving and self._leaving[0][1] <= (self._arrivals[0][1] if self._arrivals else np.inf):
            request, _ = self._leaving.popleft()
            if self._line.withdraw(request):
                self.left.append(request)
            return
        request, arrival_s = self._arrivals.popleft()
        self.late_s = max(self.late_s, now_s - arrival_s)
        if not self._line.offer(request, arrival_s=arrival_s):
            self.turned_away.append(request)
        elif np.isfinite(self._patience_s):
            self._leaving.append((request, arrival_s + self._patience_s))
        if not self._arrivals:
            self._line.close()


def run_clients(clients: Clients, clock: Clock, stop: Event) -> None:
    """Runs the clients at their times, in a thread of their own that sleeps in between, until all are done or `stop` is set."""
    while np.isfinite(due_s := clients.next_s()) and not stop.wait(max(0.0, due_s - clock.now_s())):
        clients.act(clock.now_s())
