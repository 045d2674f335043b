"""observe: times a real step, operation by operation.

The recorder of the virtual accelerator records the step on the real device, too. Each row of the trace therefore has its
measured seconds, under the cache and memory conditions of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from gpuwise.job import Job, checked_batch
from gpuwise.measure.timing import wall_seconds
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.devices import Cuda, Event, backend_of
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing.assemble import to_trace
from gpuwise.tracing.operator_call import OperatorCall, tensors_in
from gpuwise.tracing.recorder import Recorder
from gpuwise.tracing.step import create_state, noticing_updates, one_step

MOST_STEPS = 50


@dataclass(frozen=True)
class Observation:
    """An observed step.

    Attributes:
        trace: trace of one micro-batch.
        seconds: seconds of each row of its sequence, shape (steps, rows).
        step_s: seconds of whole steps without observation, shape (steps,).
    """

    trace: Trace
    seconds: np.ndarray
    step_s: np.ndarray

    @property
    def unseen_s(self) -> float:
        """What an operation takes besides its kernel: Python, autograd and dispatch. May be below zero by chance."""
        return float((np.median(self.step_s) - np.median(self.seconds.sum(axis=1))) / self.seconds.shape[1])


class _TimedRecorder(Recorder):
    """Rows with their seconds. On an accelerator its events tell them, once `resolve` is called; without timed events it waits
    after each row."""

    def __init__(self, device: torch.device):
        super().__init__(device.type)
        self.seconds: list[float] = []
        self._backend = backend_of(device)
        self._events: list[tuple[Event, Event]] = []

    def start(self) -> None:
        super().start()
        self.seconds.clear()
        self._events.clear()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        out = self._timed(partial(func, *args, **kwargs))
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.device.type == self.device_type]
        before = len(self.rows)
        if outputs or any(t.device.type == self.device_type for t in tensors_in(args)):
            self._record(OperatorCall(func, args, kwargs, outputs))
        if len(self.rows) == before:  # a view
            (self._events or self.seconds).pop()
        return out

    def _timed(self, run: Callable[[], object]) -> object:
        if self._backend.has_timed_events:
            begins, ends = self._backend.new_event(timed=True), self._backend.new_event(timed=True)
            begins.record()
            out = run()
            ends.record()
            self._events.append((begins, ends))
            return out
        start = time.perf_counter()
        out = run()
        if not self._backend.is_host:
            self._backend.synchronize()
        self.seconds.append(time.perf_counter() - start)
        return out

    def resolve(self) -> list[float]:
        """Seconds of each row."""
        if self._events:
            self._backend.synchronize()
            return [begins.elapsed_time(ends) / 1e3 for begins, ends in self._events]
        return list(self.seconds)


def observe(job: Job, strategy: Strategy, device: torch.device, *, steps: int = 3, least_s: float = 0.3) -> Observation:
    """Runs steps of a job watched, and as many unwatched, in turn: at least `steps`, and as many as fit into least_s.

    Raises what building and running it raises.
    """
    strategy, recorder = strategy.but(accumulation=1), _TimedRecorder(device)
    with noticing_updates(recorder):
        with recorder:
            program = build(job, strategy, device)
            recorder.modules.watch(program.model)
            create_state(program, recorder, strategy, really=True)
        watched: list[list[float]] = []
        unwatched: list[float] = []
        trace = None
        began = time.perf_counter()
        while len(unwatched) < steps or (time.perf_counter() - began < least_s and len(unwatched) < MOST_STEPS):
            with recorder:
                recorder.start()
                one_step(program, recorder, strategy)
                watched.append(recorder.resolve())
                trace = trace or to_trace(job, strategy, program, recorder, target=_target(device), identity="")
            unwatched.append(_step_s(program, strategy, device))
    assert trace is not None
    return Observation(trace, np.array([row for row in watched if len(row) == len(trace.sequence)]), np.array(unwatched))


def _step_s(program: Program, strategy: Strategy, device: torch.device) -> float:
    """Seconds of one step that nobody watches."""
    batch = checked_batch(program.job, strategy.micro_batch)
    run = partial(program.step, [batch]) if program.trains else partial(program.infer, batch)
    backend = backend_of(device)
    backend.synchronize()
    return wall_seconds(run, backend.synchronize)


def _target(device: torch.device) -> str:
    backend = backend_of(device)
    if backend.is_host:
        return "cpu"
    return "pre-ampere" if isinstance(backend, Cuda) and backend.is_before_ampere else "accelerator"
