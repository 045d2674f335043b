"""replay: a load served for real, with the times of each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuwise.runtime.serving.clients import Clients, run_clients
from gpuwise.runtime.serving.waiting_line import Clock, RealClock, WaitingLine
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served
from gpuwise.serving.windowed import WindowPolicy


class ServedModel(Protocol):
    """A model that answers requests together."""

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        """Answers some requests; `first` and `last` are called with a request when its first and last token is there."""
        ...


@dataclass(frozen=True)
class LoadReplay:
    """What happened to a load.

    Attributes:
        served: the outcome; of an interrupted load as for the whole of it.
        turned_away, left: requests that met a full queue, and whose clients left.
        groups: requests of each batch, in order, and the seconds that it took.
        late_s: longest delay of a request behind its arrival.
        interrupted: whether Ctrl-C ended it.
    """

    served: Served
    turned_away: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    groups: tuple[tuple[tuple[int, ...], float], ...] = ()
    late_s: float = 0.0
    interrupted: bool = False

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which requests were answered, turned away, or given up; of an interrupted load not all."""
        done = ~np.isnan(self.served.end_s)
        done[[*self.turned_away, *self.left]] = True
        return done


@dataclass
class _Outcomes:
    """The times of requests so far."""

    first_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    clock: Clock
    groups: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def first(self, request: int) -> None:
        self.first_s[request] = self.clock.now_s()

    def last(self, request: int) -> None:
        self.end_s[request] = self.clock.now_s()


def serve_line(line: WaitingLine, model: ServedModel, clock: Clock, outcomes: _Outcomes) -> None:
    """Takes batches out of the line and answers them, until it is closed and empty."""
    while group := line.next_group():
        started_s = clock.now_s()
        model.answer(group, outcomes.first, outcomes.last)
        outcomes.groups.append((tuple(group), clock.now_s() - started_s))


def replay(load: Requests, model: ServedModel, policy: WindowPolicy) -> LoadReplay:
    """Serves a load in this process: clients in a thread of their own send each request at its arrival, and this thread runs
    the model. Ctrl-C ends it early; requests that had not ended then have no times."""
    clock, stop = RealClock(), Event()
    line = WaitingLine(policy, clock)
    clients = Clients(load, line, patience_s=policy.patience_s)
    thread = Thread(target=run_clients, args=(clients, clock, stop), name="clients", daemon=True)
    outcomes, interrupted = new_outcomes(load, clock), False
    thread.start()
    try:
        serve_line(line, model, clock, outcomes)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        stop.set()
        thread.join()
    return replay_of(load, outcomes, clients, interrupted=interrupted)


def new_outcomes(load: Requests, clock: Clock) -> _Outcomes:
    return _Outcomes(np.full(len(load), np.nan), np.full(len(load), np.nan), clock)


def replay_of(load: Requests, outcomes: _Outcomes, clients: Clients, *, interrupted: bool = False) -> LoadReplay:
    """The result of a load whose clients and server have ended."""
    unended = np.isnan(outcomes.end_s)
    first_s = np.where(unended, np.nan, outcomes.first_s)  # of a batch in which Ctrl-C came
    busy_s = sum(seconds for _, seconds in outcomes.groups)
    return LoadReplay(
        Served(load, first_s, outcomes.end_s, len(outcomes.groups), busy_s),
        tuple(clients.turned_away),
        tuple(clients.left),
        tuple(outcomes.groups),
        clients.late_s,
        interrupted,
    )
