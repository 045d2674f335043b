"""The streams of one recorded rank: when each row of its step begins and ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.timeline.micro_batches import MicroBatchWaits, StreamRows, micro_batch_waits
from gpuwise.trace.tables import NO_GROUP
from gpuwise.trace.trace import Trace

_SIMULATED = 3  # how often at most a micro-batch runs that stands for others: each further one takes as long as the last


@dataclass(frozen=True)
class StreamTime:
    """What communication adds to a step whose streams are simulated.

    Attributes:
        exposed_s: seconds by which the step is longer than without communication.
        by_axis: exposed_s by axis of the mesh, in the shares of the time in which nothing is computed beside their collectives.
        total_s: seconds of all collectives.
        waits: the part of exposed_s that each micro-batch waits for, of a rank of a pipeline; else None.
    """

    exposed_s: float
    by_axis: Mapping[str, float]
    total_s: float
    waits: MicroBatchWaits | None = None


@dataclass(frozen=True)
class Durations:
    """The seconds of each position of a trace. All have shape (positions,).

    Attributes:
        device_s: on its stream.
        launch_s: on the host, which launches positions one after the other.
        crosses: whether it is a collective between machines; others run inside of them.
    """

    device_s: np.ndarray
    launch_s: np.ndarray
    crosses: np.ndarray


def stream_time(trace: Trace, durations: Durations, *, slowdown: float, one_stream: bool = False) -> StreamTime:
    """What communication adds to one optimizer step.

    Arguments:
        trace: a recorded rank's, with its collectives and waits.
        durations: of its positions.
        slowdown: share of the time that communication and computation run beside each other by which computation is longer.
        one_stream: whether communication takes the units that compute, as on a CPU.
    """
    collective = trace.operations.is_collective[trace.sequence.operation]
    quiet = Durations(np.where(collective, 0.0, durations.device_s), durations.launch_s, durations.crosses)
    whole = repeats(trace)
    few = min(whole, _SIMULATED)

    def run(times: int) -> tuple[StreamRows, StreamRows]:
        rows = simulated(trace, durations, times=times, slowdown=slowdown, one_stream=one_stream)
        return rows, simulated(trace, quiet, times=times, one_stream=one_stream)

    rows, undisturbed = run(few)
    added_s = rows.whole_s - undisturbed.whole_s
    if whole > few:
        fewer, fewer_undisturbed = run(few - 1)
        added_s += (whole - few) * (added_s - (fewer.whole_s - fewer_undisturbed.whole_s))
    added_s = max(0.0, added_s)
    total_s = float((durations.device_s * trace.repeats)[collective].sum())
    in_pipeline = trace.header.strategy.mesh.pp > 1
    waits = micro_batch_waits(trace, rows, undisturbed, one_stream=one_stream) if in_pipeline else None
    return StreamTime(added_s, _divided(added_s, _uncovered_s(trace, rows)), total_s, waits)


def repeats(trace: Trace) -> int:
    """How often the micro-batch runs that stands for all that were not recorded; 0 without one."""
    return int(trace.repeats[trace.sequence.micro_step == 1].max(initial=0))


def simulated(
    trace: Trace, durations: Durations, *, times: int | None = None, slowdown: float = 0.0, one_stream: bool = False
) -> StreamRows:
    """Places the rows of a step on their streams.

    A row begins when the host has launched it, the row before it on its stream is done, and what its stream waits for is.
    Collectives of the same group run one after the other, on any streams (NCCL orders those of a communicator).
    Computation beside communication takes longer, by `slowdown` of that time, and collectives of two groups that share a link
    take as much longer as they run beside each other: each then has half of it. A first pass shows how long that is.

    Arguments:
        times: how often the micro-batch runs that stands for others; None (default): as often as in the step.
        slowdown, one_stream: as for stream_time; by default nothing slows.
    """
    positions, waits = _launched(trace, repeats(trace) if times is None else times)
    operation = trace.sequence.operation[positions]
    collective = trace.operations.is_collective[operation]
    stream = np.zeros(len(positions), dtype=np.int64) if one_stream else trace.sequence.stream[positions]
    runs_on = stream, np.where(collective, trace.operations.group[operation], NO_GROUP)
    device_s, launched_s = durations.device_s[positions], np.cumsum(durations.launch_s[positions])
    start_s, end_s = _placed(runs_on, launched_s, device_s, waits)
    if collective.any() and not one_stream:
        longer_s = slowdown * np.where(collective, 0.0, _beside_s(start_s, end_s, collective))
        links = np.where(collective, durations.crosses[positions], -1)
        for link, group in sorted(set(zip(links[collective].tolist(), runs_on[1][collective].tolist(), strict=True))):
            mine, others = (links == link) & (runs_on[1] == group), (links == link) & (runs_on[1] != group)
            longer_s = np.where(mine, _beside_s(start_s, end_s, others), longer_s)
        start_s, end_s = _placed(runs_on, launched_s, device_s + longer_s, waits)
    return StreamRows(positions, start_s, end_s, collective)


def _placed(
    runs_on: tuple[np.ndarray, np.ndarray],
    launched_s: np.ndarray,
    device_s: np.ndarray,
    waits: Mapping[int, list[tuple[int, int]]],
) -> tuple[np.ndarray, np.ndarray]:
    """When each row begins and ends.

    Arguments:
        runs_on: stream and group of ranks of each row, NO_GROUP of computation.
        waits: streams that wait from a row on, and the rows for which they do.
    """
    stream_free_s: dict[int, float] = defaultdict(float)
    group_free_s: dict[int, float] = defaultdict(float)
    ends: list[float] = []
    columns = (*runs_on, launched_s, device_s)
    for row, (stream, group, launch, seconds) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        for waiting, awaited in waits.get(row, ()):
            stream_free_s[waiting] = max(stream_free_s[waiting], ends[awaited])
        end = max(stream_free_s[stream], launch)
        if group != NO_GROUP:
            end = max(end, group_free_s[group])
        end += seconds
        stream_free_s[stream] = end
        if group != NO_GROUP:
            group_free_s[group] = end
        ends.append(end)
    end_s = np.array(ends)
    return end_s - device_s, end_s


def _beside_s(start_s: np.ndarray, end_s: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Seconds for which each row runs beside any of some rows, a mask. Shape (rows,)."""
    at, covered_s = _covered(start_s[others], end_s[others])
    shared: np.ndarray = np.interp(end_s, at, covered_s) - np.interp(start_s, at, covered_s)
    return shared


def _uncovered_s(trace: Trace, rows: StreamRows) -> dict[str, float]:
    """Seconds of collectives beside which nothing is computed, by axis."""
    chosen = rows.is_collective
    seconds = (rows.end_s - rows.start_s - _beside_s(rows.start_s, rows.end_s, ~chosen))[chosen]
    groups = trace.operations.group[trace.sequence.operation[rows.position[chosen]]]
    return {
        axis: float(seconds[[trace.header.groups[group].axis == axis for group in groups.tolist()]].sum())
        for axis in dict.fromkeys(group.axis for group in trace.header.groups)
    }


def _covered(start_s: np.ndarray, end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments, and the seconds before each that lie in any of the intervals."""
    order = np.argsort(start_s, kind="stable")
    ends = np.concatenate([[0.0], np.maximum.accumulate(end_s[order])])
    begins = np.maximum(start_s[order], ends[:-1])  # of the part that no earlier interval covers
    at = np.column_stack([begins, np.maximum(ends[1:], begins)]).ravel()
    covered_s = np.cumsum(np.diff(at, prepend=0.0) * np.tile([0.0, 1.0], len(order)))
    return np.concatenate([[0.0], at]), np.concatenate([[0.0], covered_s])


def _divided(added_s: float, parts: Mapping[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {axis: added_s * (part / total if total else 1 / len(parts)) for axis, part in parts.items()}


def _launched(trace: Trace, times: int) -> tuple[np.ndarray, dict[int, list[tuple[int, int]]]]:
    """The positions of a step in the order in which they are launched, and the waits by row: the stream, and the row it needs.

    The micro-batch that stands for others comes so many times. What a later one waits for of the micro-batch before it is as
    far from that one's end. Positions that do not run are left out, and nothing waits for them.
    """
    sequence, waits = trace.sequence, trace.waits
    middle = np.flatnonzero(sequence.micro_step == 1)
    first, end = (int(middle[0]), int(middle[-1]) + 1) if len(middle) else (len(sequence), len(sequence))
    runs = trace.repeats > 0
    row_of = np.full(len(sequence) + 1, -1)  # the latest row of each position
    rows: list[np.ndarray] = []
    by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    order = np.argsort(waits.position, kind="stable")
    position, stream, on = waits.position[order], waits.stream[order].tolist(), waits.on[order].tolist()
    count = 0
    for number, (low, high) in enumerate([(0, first), *[(first, end)] * times, (end, len(sequence))]):
        inside = low + np.flatnonzero(runs[low:high])
        before = row_of.copy()
        row_of[inside] = count + np.arange(len(inside))
        later = end - first if 2 <= number <= times else 0
        for index in range(*np.searchsorted(position, [low, high]).tolist()):
            needed = on[index]
            awaited = int(row_of[needed] if needed >= low else before[min(needed + later, end)])
            row = count + int(np.searchsorted(inside, position[index]))
            if 0 <= awaited < row:
                by_row[row].append((stream[index], awaited))
        rows.append(inside)
        count += len(inside)
    return np.concatenate(rows), by_row
