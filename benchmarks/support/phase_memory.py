"""What a forecast says of memory beyond its peak: of each phase of the step, and of the sizes that make the peak."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpuwise.cost.memory.device import blas_workspace_bytes
from gpuwise.cost.memory.events import Events, step_events
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.types import Chip
from gpuwise.trace import PHASES, Trace
from gpuwise.trace.tables import BEFORE, CATEGORIES

_PEAKS = {"forward": ["forward"], "backward": ["backward", "recompute"], "optimizer": ["optimizer"]}


def phase_bytes(trace: Trace, chip: Chip) -> dict[str, int]:
    """Allocated bytes of a GPU: "resident", the parameters before the first step; and at most in each phase of the second."""
    events = step_events(trace, blas_workspace_bytes=blas_workspace_bytes(trace, chip, parameters()))
    blocks = np.array(events.replay().block_bytes)
    which = np.where(events.order < 0, ~events.order, events.order)
    held = np.cumsum(np.where(events.order < 0, -blocks[which], blocks[which]))
    born = np.where(events.order < 0, BEFORE, events.position[which])  # only what is made can be a peak
    phase = np.append(trace.sequence.phase, -1)[born]
    weights = (events.position == BEFORE) & (events.category == CATEGORIES.index("parameter"))
    second = events.moment >= events.duration
    peaks = {
        name: held[second & np.isin(phase, [PHASES.index(p) for p in phases])].max(initial=0) for name, phases in _PEAKS.items()
    }
    return {"resident": int(blocks[weights].sum()), **{name: int(peak) for name, peak in peaks.items()}}


def sizes_at_peak(trace: Trace, chip: Chip) -> Counter[int]:
    """How many allocations of each size, as requested, make up the peak."""
    events = step_events(trace, blas_workspace_bytes=blas_workspace_bytes(trace, chip, parameters()))
    return alive_at(events, events.replay().peak_event)


def alive_at(events: Events, event: int) -> Counter[int]:
    """Sizes of what is there once an event has happened."""
    alive: set[int] = set()
    for which in events.order[: event + 1].tolist():
        (alive.discard(~which) if which < 0 else alive.add(which))
    return Counter(int(events.size_bytes[which]) for which in alive)
