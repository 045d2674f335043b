"""observe: times a real step, operation by operation.

The recorder of the virtual accelerator records the step on the real device, too, and a timer times the same operators in later
steps. Each row of the trace therefore has its measured seconds, under the cache and memory conditions of the step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from gpuwise.job import Job, checked_batch
from gpuwise.measure.operation_timer import Clock, OperationTimer
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.devices import Cuda, backend_of
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import step
from gpuwise.tracing.assemble import to_trace
from gpuwise.tracing.operator_call import OperatorCall, tensors_in
from gpuwise.tracing.recorder import Recorder
from gpuwise.tracing.step import create_state, noticing_updates, one_step

MOST_STEPS = 50
SHORT_STEP_S = 0.02  # steps up to which what a call takes beside its kernel is not lost in their noise
UNDISTURBED = 0.1  # the quantile of steps that were hardly interrupted


@dataclass(frozen=True)
class Observation:
    """An observed step.

    Attributes:
        trace: trace of one micro-batch.
        seconds: seconds of each row of its sequence, shape (steps, rows).
        step_s: seconds of whole steps that nobody watched, shape (steps,).
    """

    trace: Trace
    seconds: np.ndarray
    step_s: np.ndarray

    @property
    def unseen_s(self) -> float:
        """What an operation takes besides its kernel: Python, autograd and dispatch. May be below zero by chance.

        Operations that launch no kernel count as that, as no forecast prices them. Other programs interrupt a whole step far
        more often than an operation, so steps that hardly were interrupted count.
        """
        sequence = self.trace.sequence
        priced = self.trace.operations.column("kernels")[sequence.operation] > 0
        operations_s = np.median(self.seconds, axis=0)[priced].sum()
        return float((np.quantile(self.step_s, UNDISTURBED) - operations_s) / max(1, priced.sum()))


class _RowRecorder(Recorder):
    """A recorder on the real device.

    Attributes:
        is_row: of each operator that was dispatched, whether it made a row; views make none.
    """

    def __init__(self, device: torch.device):
        super().__init__(device.type)
        self.is_row: list[bool] = []

    def start(self) -> None:
        super().start()
        self.is_row.clear()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.paused:
            return out
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.device.type == self.device_type]
        before = len(self.rows)
        if outputs or any(t.device.type == self.device_type for t in tensors_in(args)):
            self._record(OperatorCall(func, args, kwargs, outputs))
        self.is_row.append(len(self.rows) > before)
        return out


def observe(
    job: Job,
    strategy: Strategy,
    device: torch.device,
    *,
    steps: int = 3,
    least_s: float = 0.3,
    clock: Clock | None = None,
) -> Observation:
    """Records a step of a job, then runs steps whose operations are timed and as many that nobody watches, in turn: at least
    `steps`, and as many as fit into least_s.

    clock: seconds; None takes those on the wall.

    Raises what building and running it raises.
    """
    clock = clock or time.perf_counter
    strategy, recorder = strategy.but(accumulation=1), _RowRecorder(device)
    timer = OperationTimer(device, recorder, clock=clock)
    with noticing_updates(recorder):
        program, trace = _recorded(job, strategy, device, recorder)
        is_row = np.array(recorder.is_row, dtype=bool)
        watched: list[list[float]] = []
        unwatched: list[float] = []
        began = clock()
        while len(unwatched) < steps or (clock() - began < least_s and len(unwatched) < MOST_STEPS):
            with timer:
                timer.start()
                one_step(program, recorder, strategy)
                watched.append(timer.resolve())
            unwatched.append(_step_s(program, strategy, device, clock))
    alike = [seconds for seconds in watched if len(seconds) == len(is_row)]
    return Observation(trace, np.array(alike).reshape(-1, len(is_row))[:, is_row], np.array(unwatched))


def _recorded(job: Job, strategy: Strategy, device: torch.device, recorder: _RowRecorder) -> tuple[Program, Trace]:
    """The program, and the trace of its second step; the first makes the optimizer's state."""
    with recorder:
        program = build(job, strategy, device)
        recorder.modules.watch(program.model)
        create_state(program, recorder, strategy, really=True)
        recorder.start()
        step.one_step(program, recorder, strategy)
        return program, to_trace(job, strategy, program, recorder, target=_target(device), identity="")


def _step_s(program: Program, strategy: Strategy, device: torch.device, clock: Clock) -> float:
    """Seconds of one step that nobody watches. A short one follows another, as in a loop: else it would begin with the caches
    that making its batch has left."""
    batch = checked_batch(program.job, strategy.micro_batch)
    run = partial(program.step, [batch]) if program.trains else partial(program.infer, batch)
    backend = backend_of(device)
    backend.synchronize()
    seconds = 0.0
    for _ in range(2):
        start = clock()
        run()
        backend.synchronize()
        seconds = clock() - start
        if seconds > SHORT_STEP_S:
            break
    return seconds


def _target(device: torch.device) -> str:
    backend = backend_of(device)
    if backend.is_host:
        return "cpu"
    return "pre-ampere" if isinstance(backend, Cuda) and backend.is_before_ampere else "accelerator"
