"""What each micro-batch of a recorded rank waits for its communication, where all micro-batches were recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace

COMPUTE = 0  # the stream that computes


@dataclass(frozen=True)
class StreamRows:
    """Rows of a step in the order in which the host launches them. All columns have shape (rows,).

    Attributes:
        position: of the trace.
        start_s, end_s: on the row's stream.
        is_collective: whether it is a collective.
    """

    position: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    is_collective: np.ndarray

    @property
    def whole_s(self) -> float:
        """Seconds until the last row is done."""
        return float(self.end_s.max(initial=0.0))


@dataclass(frozen=True)
class MicroBatchWaits:
    """Seconds by which communication lengthens the work on each micro-batch, in their order.

    Attributes:
        forward_s: of the forward pass.
        backward_s: of the backward pass, with what is recomputed for it.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """Seconds of all micro-batches."""
        return sum(self.forward_s) + sum(self.backward_s)


def micro_batch_waits(trace: Trace, rows: StreamRows, undisturbed: StreamRows, *, one_stream: bool) -> MicroBatchWaits:
    """What each micro-batch waits for.

    Arguments:
        trace: of a rank, recorded with all its micro-batches.
        rows: of the step.
        undisturbed: the same rows where communication takes no time.
        one_stream: whether communication takes the units that compute.
    """
    computes = one_stream | (trace.sequence.stream[rows.position] == COMPUTE)
    later_s = np.maximum.accumulate(np.where(computes, rows.end_s, 0.0))
    later_s -= np.maximum.accumulate(np.where(computes, undisturbed.end_s, 0.0))
    added_s = np.diff(later_s, prepend=0.0)
    number, forward = _micro_batches(trace)[rows.position], trace.sequence.phase[rows.position] == PHASES.index("forward")
    waits = [
        np.bincount(number[chosen], weights=added_s[chosen], minlength=trace.accumulation).tolist()
        for chosen in ((number >= 0) & forward, (number >= 0) & ~forward)
    ]
    return MicroBatchWaits(tuple(waits[0]), tuple(waits[1]))


def _micro_batches(trace: Trace) -> np.ndarray:
    """The micro-batch that each position works on, -1 of what comes once at the end of a step. Shape (positions,).

    An operation of a module and a phase runs equally often in every micro-batch, and micro-batches come in their order. What
    does not, such as a gather of parameters for all of them, belongs to what is launched next. Operations of no module behind
    the last one of a module come once a step.
    """
    sequence, phases = trace.sequence, len(PHASES)
    kind = (sequence.operation.astype(np.int64) * len(trace.modules) + sequence.module) * phases + sequence.phase
    _, which, runs = np.unique(kind, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    before = np.empty(len(kind), dtype=np.int64)  # how often the position's kind has run
    before[order] = np.arange(len(kind)) - np.repeat(np.cumsum(runs) - runs, runs)
    each, rest = np.divmod(runs[which], trace.accumulation)
    in_module = np.array([bool(name) for name in trace.modules])[sequence.module]
    inside = np.flatnonzero(in_module & (sequence.phase != PHASES.index("optimizer")))
    regular = np.flatnonzero((rest == 0) & (np.arange(len(kind)) <= inside.max(initial=-1)))
    following = np.searchsorted(regular, np.arange(len(kind)))
    numbers = np.append(before // np.maximum(each, 1), -1)
    return numbers[np.append(regular, -1)[following]]
