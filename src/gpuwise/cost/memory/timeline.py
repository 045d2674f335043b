"""The memory timeline of one step by category: the picture behind a MemoryForecast."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.memory.device import blas_workspace_bytes, memory_forecast
from gpuwise.cost.memory.events import CATEGORY_NAMES, WORKSPACE, step_events
from gpuwise.cost.memory.peak import MemoryPeak, peak_of
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import ALLOCATION_GRANULE_BYTES, alive_bytes
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace


@dataclass(frozen=True, repr=False)
class Timeline(Printed):
    """Live bytes over one optimizer step of one device, with up to two micro-batches.

    Attributes:
        job: name of the job.
        device: name of the device.
        strategy: strategy of the step.
        categories: names of categories, in stacking order.
        size_bytes: live bytes, shape (categories, positions); each position is one executed operation.
        phase: index into PHASES, shape (positions,).
        start_s: start of each position in seconds, shape (positions + 1,); the last entry is the end.
        peak_index: the position of the peak; that column of size_bytes equals memory.by_category.
        peak: description of the peak.
        memory: memory forecast of the step.
        forecast: forecast of the whole step; None (default) if it was not requested.
    """

    job: str
    device: str
    strategy: Strategy
    categories: tuple[str, ...]
    size_bytes: np.ndarray
    phase: np.ndarray
    start_s: np.ndarray
    peak_index: int
    peak: MemoryPeak
    memory: MemoryForecast
    forecast: Forecast | None = None

    @property
    def total_bytes(self) -> np.ndarray:
        """Live bytes of all categories, shape (positions,)."""
        total: np.ndarray = self.size_bytes.sum(axis=0)
        return total

    @property
    def peak_s(self) -> float:
        """The middle of the operation at the peak, in seconds."""
        return float(self.start_s[self.peak_index : self.peak_index + 2].mean())

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """(phase, begin, end) in seconds, in order: forward, backward (recomputation included), optimizer."""
        phase = np.where(self.phase == PHASES.index("recompute"), PHASES.index("backward"), self.phase)
        edges = [0, *(np.flatnonzero(np.diff(phase)) + 1).tolist(), len(phase)]
        return [(PHASES[phase[a]], float(self.start_s[a]), float(self.start_s[b])) for a, b in pairwise(edges) if b > a]

    @property
    def recomputes(self) -> list[tuple[float, float]]:
        """(begin, end) in seconds of each stretch of recomputation in backward."""
        again = np.diff(np.concatenate([[0], self.phase == PHASES.index("recompute"), [0]]).astype(int))
        return [
            (float(self.start_s[a]), float(self.start_s[b]))
            for a, b in zip(np.flatnonzero(again > 0), np.flatnonzero(again < 0), strict=True)
        ]

    def sampled(self, columns: int) -> np.ndarray:
        """The largest memory in each of `columns` equal stretches of time, shape (categories, columns)."""
        edges = np.linspace(0.0, self.start_s[-1], columns + 1)
        first = np.clip(np.searchsorted(self.start_s, edges[:-1], side="right") - 1, 0, len(self.phase) - 1)
        last = np.clip(np.searchsorted(self.start_s, edges[1:], side="left"), first + 1, len(self.phase))
        total = self.total_bytes
        chosen = [a + int(total[a:b].argmax()) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        return self.size_bytes[:, chosen]

    def to_dict(self) -> dict[str, object]:
        """The timeline in plain types, arrays as lists."""
        return {
            "job": self.job,
            "device": self.device,
            "strategy": self.strategy.to_dict(),
            "categories": list(self.categories),
            "size_bytes": self.size_bytes.tolist(),
            "phases": [PHASES[i] for i in self.phase],
            "start_s": self.start_s.tolist(),
            "peak_index": self.peak_index,
            "peak": self.peak.to_dict(),
            "memory": asdict(self.memory),
        }


def timeline(
    trace: Trace,
    cluster: Cluster,
    *,
    memory: MemoryForecast | None = None,
    parameters: Parameters | None = None,
) -> Timeline:
    """Memory over the step of `trace` on one device of a cluster.

    Arguments:
        memory: the memory forecast; None computes it.
        parameters: figures of the cost model; None takes the shipped ones.

    Each operation lasts as long as it takes alone; idle gaps of the device are left out. Raises the errors of `price` if the
    chip cannot run the trace.
    """
    parameters = parameters or shipped_parameters()
    chip = cluster.chip
    memory = memory or memory_forecast(trace, cluster, parameters=parameters)
    alive, position = _counted(trace, chip, memory) if memory.counted_only else _replayed(trace, chip, memory, parameters)
    sequence = trace.sequence
    runs = np.flatnonzero((sequence.micro_step != 1) | (trace.accumulation > 1))
    used = [i for i in range(len(CATEGORY_NAMES)) if alive[i].any()]
    device_s = kernel_times(trace, chip, parameters).device_s[sequence.operation[runs]]
    return Timeline(
        job=trace.header.job,
        device=chip.id,
        strategy=trace.header.strategy,
        categories=tuple(CATEGORY_NAMES[i] for i in used),
        size_bytes=alive[used][:, runs],
        phase=sequence.phase[runs],
        start_s=np.concatenate([[0.0], np.cumsum(device_s)]),
        peak_index=int(np.searchsorted(runs, position)),
        peak=peak_of(trace, position=position),
        memory=memory,
    )


def _replayed(trace: Trace, chip: Chip, memory: MemoryForecast, parameters: Parameters) -> tuple[np.ndarray, int]:
    """Bytes at each position in a replay of the allocator, shape (categories, positions), and the peak's position."""
    events = step_events(trace, blas_workspace_bytes=blas_workspace_bytes(trace, chip, parameters))
    limit = None
    if memory.cache_releases and memory.capacity_bytes is not None:
        limit = memory.capacity_bytes - (memory.device_bytes - memory.peak_reserved_bytes)
    run = events.replay(limit_bytes=limit)
    is_allocation = events.order >= 0
    which = np.where(is_allocation, events.order, ~events.order)
    delta = np.zeros((len(CATEGORY_NAMES), len(which) + 1), dtype=np.int64)
    delta[events.category[which], np.arange(1, len(which) + 1)] = (
        np.where(is_allocation, 1, -1) * np.array(run.block_bytes)[which]
    )
    alive = np.cumsum(delta, axis=1)  # after each event; the first column is before any
    total = alive.sum(axis=0)
    peak, length = run.peak_event + 1, len(trace.sequence)
    steady = int(np.searchsorted(events.moment, events.duration))
    again = steady + 1 + int(total[steady + 1 :].argmax()) if steady + 1 < len(total) else peak
    if (alive[:, again] == alive[:, peak]).all():
        peak = again  # the second step is the usual one
    base = events.duration if peak > steady else 0
    first = np.searchsorted(events.moment, base + np.arange(length), side="left")
    last = np.searchsorted(events.moment, base + np.arange(length), side="right")
    chosen = [a + int(total[a : b + 1].argmax()) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    return alive[:, chosen], int(np.clip(events.moment[peak - 1] - base, 0, length - 1))


def _counted(trace: Trace, chip: Chip, memory: MemoryForecast) -> tuple[np.ndarray, int]:
    """The same from counted live bytes; memory other than tensors is constant."""
    granule_bytes = 1 if family(chip) == "cpu" else ALLOCATION_GRANULE_BYTES
    alive = alive_bytes(trace, granule_bytes=granule_bytes)
    workspace = np.full((1, alive.shape[1]), memory.by_category.get(WORKSPACE, 0))
    return np.concatenate([alive, workspace]), int(alive.sum(axis=0).argmax())
