"""OperationTimer: the seconds of each operator that a step dispatches, with as little as possible between one and the next.

What runs between two operators takes caches from them. The recorder describes every call in Python, so that a step is recorded
once, and timed in later steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.runtime.devices import Event, backend_of
from gpuwise.tracing.propagation import Pausable

Clock = Callable[[], float]


class OperationTimer(TorchDispatchMode):
    """Times every operator that is dispatched while it is entered and `recorder` is not paused, views included.

    On an accelerator its events have the seconds; without timed events the timer waits after each operator and reads `clock`.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under it

    def __init__(self, device: torch.device, recorder: Pausable, *, clock: Clock = time.perf_counter):
        super().__init__()
        self._backend, self._recorder, self._clock = backend_of(device), recorder, clock
        self._seconds: list[float] = []
        self._events: list[tuple[Event, Event]] = []

    def start(self) -> None:
        """Begins a step."""
        self._seconds.clear()
        self._events.clear()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if self._recorder.paused:
            return func(*args, **(kwargs or {}))
        if self._backend.has_timed_events:
            begins, ends = self._backend.new_event(timed=True), self._backend.new_event(timed=True)
            begins.record()
            out = func(*args, **(kwargs or {}))
            ends.record()
            self._events.append((begins, ends))
            return out
        start = self._clock()
        out = func(*args, **(kwargs or {}))
        if not self._backend.is_host:
            self._backend.synchronize()
        self._seconds.append(self._clock() - start)
        return out

    def resolve(self) -> list[float]:
        """Seconds of each operator of the step."""
        if self._events:
            self._backend.synchronize()
            return [begins.elapsed_time(ends) / 1e3 for begins, ends in self._events]
        return list(self._seconds)
